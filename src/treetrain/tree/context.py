"""What a partition reads, as a tree of its own: its gateway's path, and then its own tokens."""

from __future__ import annotations

import numpy as np

from treetrain.tree.partitions import Partitions
from treetrain.tree.prefix_tree import PrefixTree
from treetrain.tree.ranges import Ints, join_ranges, offsets_of


def context_tree(partitions: Partitions, partition: int) -> tuple[PrefixTree, Ints]:
    """Build the tree of a partition's gateway and its own nodes.

    Its first `gateway_sizes[partition]` tokens are the gateway, a path from a root; the partition's
    own follow in the order of `own_nodes`. What is above one of these in this tree is all that is
    above it in the whole one.

    Args:
        partitions: the partitions of a tree.
        partition: index of one of them.

    Returns:
        The tree, with the path counts of the whole one and without sequences, and the packed index
        in the whole tree of each of its tokens, [G + tokens of the partition], int64.

    Example:
        >>> from treetrain.tree.partition import partition_tree
        >>> partitions = partition_tree(build_prefix_tree([[1, 2, 3, 4], [1, 2, 5, 6, 7]]), 3)
        >>> context, places = context_tree(partitions, 2)
        >>> context.tokens.tolist(), context.parents.tolist(), places.tolist()
        ([1, 2, 3, 4], [-1, 0], [0, 1, 5, 6])
    """
    tree = partitions.tree
    gateway, own = partitions.gateway_nodes(partition), partitions.own_nodes(partition)
    nodes = np.concatenate([gateway, own])
    starts = offsets_of(tree.node_lengths[nodes])
    places = join_ranges(tree.node_starts[nodes], tree.node_lengths[nodes])
    # Below a node of the gateway are the rest of the gateway and what hangs from there, below one's
    # own node only nodes of its piece.
    first_ends = np.where(np.arange(len(nodes)) < len(gateway), starts[len(gateway)], starts[:-1])
    context = PrefixTree(
        tokens=tree.tokens[places],
        keys=None if tree.keys is None else tree.keys[places],
        node_starts=starts,
        parents=cut_parents(partitions, partition),
        path_counts=tree.path_counts[nodes],
        depth_starts=tree.depth_starts[nodes],
        subtree_ends=first_ends + _count_below(tree, own, nodes),
        sequence_nodes=np.zeros(0, np.int64),
    )
    return context, places


def cut_parents(partitions: Partitions, partition: int) -> Ints:
    """Return from which node each node of a partition's context hangs.

    Args:
        partitions: the partitions of a tree.
        partition: index of one of them.

    Returns:
        For each node of the gateway and then of `own_nodes` the index of its parent among these
        together, smaller than its own; -1 for a root.
    """
    gateway, own = partitions.gateway_nodes(partition), partitions.own_nodes(partition)
    nodes = np.concatenate([gateway, own])
    order = np.argsort(nodes)
    parents = partitions.tree.parents[nodes]
    found = order[np.searchsorted(nodes[order], parents).clip(max=len(nodes) - 1)]
    return np.where(parents >= 0, found, -1)


def _count_below(tree: PrefixTree, own: Ints, nodes: Ints) -> Ints:
    """Return how many tokens of `own` each of `nodes` has in its subtree, itself included."""
    ordered = np.sort(own)
    counts = offsets_of(tree.node_lengths[ordered])
    starts = tree.node_starts[ordered]
    ends = np.searchsorted(starts, tree.subtree_ends[nodes])
    return counts[ends] - counts[np.searchsorted(starts, tree.node_starts[nodes])]
