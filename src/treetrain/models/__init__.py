"""Hugging Face models on packed trees: the lowest floor that knows transformers."""
