"""Cutting the nodes of a prefix tree into shorter ones; tokens and packed order stay."""

from __future__ import annotations

import numpy as np

from treetrain.tree.prefix_tree import PrefixTree
from treetrain.tree.ranges import Ints


def cut_nodes(tree: PrefixTree, starts: Ints) -> PrefixTree:
    """Cut nodes, each into a chain of nodes.

    Args:
        tree: the prefix tree, any number of roots.
        starts: packed index of each new node's first token, ascending, [n]; the first token of
            every node of the tree is among them.

    Returns:
        The same tokens in the same packed order as n nodes, no longer maximal where one was cut; a
        sequence ends in the last node of the chain.

    Example:
        >>> tree = cut_nodes(build_prefix_tree([[1, 2, 3], [1, 2, 4]]), np.array([0, 1, 2, 3]))
        >>> tree.parents.tolist(), tree.subtree_ends.tolist(), tree.sequence_nodes.tolist()
        ([-1, 0, 1, 1], [4, 4, 3, 4], [2, 3])
    """
    if tree.num_nodes == len(starts):
        return tree
    nodes = np.searchsorted(tree.node_starts, starts, side="right") - 1
    # One entry more than nodes, so that index -1 (no node) finds -1.
    lasts = np.append(np.searchsorted(starts, tree.node_starts[1:]) - 1, -1).astype(np.int64)
    inside = starts - tree.node_starts[nodes]
    before = np.arange(-1, len(starts) - 1, dtype=np.int64)
    return PrefixTree(
        tokens=tree.tokens,
        keys=tree.keys,
        node_starts=np.append(starts, tree.num_tokens).astype(np.int64),
        parents=np.where(inside > 0, before, lasts[tree.parents[nodes]]),
        path_counts=tree.path_counts[nodes],
        depth_starts=tree.depth_starts[nodes] + inside,
        subtree_ends=tree.subtree_ends[nodes],
        sequence_nodes=lasts[tree.sequence_nodes],
    )
