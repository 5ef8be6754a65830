"""Trees and tiny models to test against, shipped for users' own tests; trees need numpy alone."""

from __future__ import annotations

from treetrain.testing.trees import VOCABULARY, random_forest, tree_family, worked_example

__all__ = ["VOCABULARY", "random_forest", "tree_family", "worked_example"]
