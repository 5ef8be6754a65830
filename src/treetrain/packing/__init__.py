"""From samples to packed rows of tensors and their targets, and from packed values back."""
