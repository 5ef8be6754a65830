"""Proof that tree training equals training each sequence alone, on any model and data."""
