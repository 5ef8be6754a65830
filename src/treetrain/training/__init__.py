"""Supervised training from a configuration to a folder with a model."""
