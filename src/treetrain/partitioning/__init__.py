"""Trees larger than memory: what to cut where, and one exact training step over the parts."""
