"""Putting the nodes of a tree into packed order.

Whoever finds the nodes hands them over in any depth-first order; this file alone knows which child
comes first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from treetrain.tree.prefix_tree import PrefixTree
from treetrain.tree.ranges import Ints, offsets_of, sum_along_paths, take_ranges


@dataclass(frozen=True)
class UnorderedNodes:
    """Nodes of a prefix tree in some depth-first order, siblings in any order.

    Attributes:
        sources: index of each node's first token in the caller's flat tokens, [N].
        lengths: tokens of each node, at least 1, [N].
        parents: node index of each node's parent, smaller than its own, [N]; -1 for a root.
        ends: node index one past the last node below each node, [N].
        depth_starts: depth position of each node's first token, [N].
        path_counts: sequences through each node, with multiplicity, [N].
        first_sequences: smallest index of a sequence through each node, [N].
    """

    sources: Ints
    lengths: Ints
    parents: Ints
    ends: Ints
    depth_starts: Ints
    path_counts: Ints
    first_sequences: Ints


def lay_out(
    nodes: UnorderedNodes,
    tokens: NDArray[np.integer],
    keys: Ints | None,
    *,
    sequence_nodes: Ints,
) -> PrefixTree:
    """Order nodes depth-first, the largest child first, and gather their tokens.

    Args:
        nodes: the nodes, siblings in any order.
        tokens: flat tokens that `nodes.sources` counts in, [n].
        keys: flat keys, [n], or None.
        sequence_nodes: node, as numbered in `nodes`, in which each sequence ends, [S]; -1 if empty.

    Returns:
        The tree in packed order.
    """
    running = offsets_of(nodes.lengths)
    sizes = running[nodes.ends] - running[:-1]
    starts = _packed_starts(nodes, sizes)
    order = np.argsort(starts)
    # One entry more than nodes, so that index -1 (no node) finds -1.
    renumbered = np.full(len(order) + 1, -1, np.int64)
    renumbered[order] = np.arange(len(order))
    lengths = nodes.lengths[order]
    sources = nodes.sources[order]
    return PrefixTree(
        tokens=take_ranges(tokens, sources, lengths).astype(np.int64, copy=False),
        keys=None if keys is None else take_ranges(keys, sources, lengths),
        node_starts=offsets_of(lengths),
        parents=renumbered[nodes.parents[order]],
        path_counts=nodes.path_counts[order],
        depth_starts=nodes.depth_starts[order],
        subtree_ends=(starts + sizes)[order],
        sequence_nodes=renumbered[sequence_nodes],
    )


def _packed_starts(nodes: UnorderedNodes, sizes: Ints) -> Ints:
    """Return the packed index of each node's first token, [N], nodes numbered as given."""
    parents = nodes.parents
    if not len(parents):
        return np.zeros(0, np.int64)
    by_appearance = np.lexsort((nodes.first_sequences, parents))
    siblings = np.flatnonzero(np.diff(parents[by_appearance], prepend=-2))
    counts = np.diff(siblings, append=len(parents))
    sorted_sizes = sizes[by_appearance]
    before = offsets_of(sorted_sizes)[:-1]
    before -= np.repeat(before[siblings], counts)
    # The largest child, the first of the largest, moves before all that appeared earlier.
    largest = np.repeat(np.maximum.reduceat(sorted_sizes, siblings), counts)
    candidates = np.flatnonzero(sorted_sizes == largest)
    owners = np.searchsorted(siblings, candidates, side="right")
    moved = candidates[np.diff(owners, prepend=0) > 0]
    places = np.arange(len(parents))
    before += np.where(places < np.repeat(moved, counts), largest, 0)
    before[moved] = 0
    offsets = np.empty(len(parents), np.int64)
    offsets[by_appearance] = before
    # A node starts where its parent starts, plus the parent's tokens, plus the siblings before it.
    offsets += np.where(parents >= 0, nodes.lengths[parents], 0)
    return sum_along_paths(offsets, nodes.ends)
