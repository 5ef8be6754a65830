"""Attention over a packed tree: one public function in `api`, one file per backend."""
