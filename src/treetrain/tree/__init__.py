"""Prefix trees: building them and what follows from their shape, with numpy alone."""

from __future__ import annotations

from treetrain.tree.build import build_prefix_tree, concatenate_trees
from treetrain.tree.prefix_tree import PrefixTree

__all__ = ["PrefixTree", "build_prefix_tree", "concatenate_trees"]
