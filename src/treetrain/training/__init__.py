"""Log-probabilities, losses and training steps on packed trees."""
