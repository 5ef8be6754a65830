"""Prefix trees: building them and what follows from their shape, with numpy alone."""

from __future__ import annotations

from treetrain.tree.build import build_prefix_tree, concatenate_trees
from treetrain.tree.context import context_tree
from treetrain.tree.metrics import (
    ModelShape,
    TreeMetrics,
    flop_bound,
    leafized_flop_bound,
    measure_tree,
)
from treetrain.tree.nodes import build_from_nodes
from treetrain.tree.partition import Partitions, partition_tree
from treetrain.tree.prefix_tree import PrefixTree

__all__ = [
    "ModelShape",
    "Partitions",
    "PrefixTree",
    "TreeMetrics",
    "build_from_nodes",
    "build_prefix_tree",
    "concatenate_trees",
    "context_tree",
    "flop_bound",
    "leafized_flop_bound",
    "measure_tree",
    "partition_tree",
]
