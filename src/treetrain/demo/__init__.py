"""The built-in example: an agent that looks after a greenhouse, its tokenizer, its small model."""
