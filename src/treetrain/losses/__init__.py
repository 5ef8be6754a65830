"""Log-probabilities and losses of packed trees, through a head that runs in chunks."""
