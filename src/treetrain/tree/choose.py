"""Chooses whole sequences that share prefixes and branch, within a number of flat tokens.

A check on a few sequences says something of trees only where these sequences part after a common
prefix; from the front of a file they often do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from treetrain.tree.prefix_tree import PrefixTree
from treetrain.tree.ranges import Ints, offsets_of, range_minima


def choose_shared(trees: Sequence[PrefixTree], limit: int) -> list[Ints]:
    """Choose sequences that share, those that branch first.

    For each node, the shortest sequences through it that fit are counted, beginning with the two
    shortest that part there. The node at which they save most tokens comes first, then the others
    in this order while there is room; nodes where sequences only end, so that one is a prefix of
    the next, come after those where they part.

    Args:
        trees: one tree or several.
        limit: most flat tokens, over all trees.

    Returns:
        Indices of each tree's chosen sequences, ascending, int64. Two that share a prefix and part
        after it are among them if any two such fit.

    Example:
        >>> tree = build_prefix_tree([[1, 2], [5, 6, 7, 8, 9], [5, 6, 7, 8], [5, 6, 7, 1]])
        >>> [chosen.tolist() for chosen in choose_shared([tree], 9)]
        [[2, 3]]
    """
    found = [_Passing(tree, limit) for tree in trees]
    places = [place for index, passing in enumerate(found) for place in passing.places(index)]
    places.sort(key=lambda place: (not place.parts, -place.saved))
    lengths = [tree.sequence_lengths for tree in trees]
    chosen: list[set[int]] = [set() for _ in trees]
    shortest = sorted(
        (int(length), tree, sequence)
        for tree, own in enumerate(lengths)
        for sequence, length in enumerate(own)
        if length
    )
    left = iter(shortest)  # those before are chosen
    least = next(left, None)
    room = limit
    for place in places:
        while least is not None and least[2] in chosen[least[1]]:
            least = next(left, None)
        if least is None or room < least[0]:
            break
        for sequence in found[place.tree].order(place.node)[0].tolist():
            length = int(lengths[place.tree][sequence])
            if length <= room and sequence not in chosen[place.tree]:
                chosen[place.tree].add(sequence)
                room -= length
    return [np.array(sorted(own), np.int64) for own in chosen]


def shortest_branching_pair(trees: Sequence[PrefixTree]) -> int | None:
    """Return how many flat tokens two sequences have at least that share a prefix and branch.

    Args:
        trees: one tree or several.

    Returns:
        Sum of their lengths, or None where no two branch within one tree's root.

    Example:
        >>> shortest_branching_pair([build_prefix_tree([[1, 2], [5, 6, 7], [5, 6, 8, 9]])])
        7
    """
    sums: list[int] = []
    for tree in trees:
        by_rank = _by_length(tree)
        for pair in _parting_pairs(tree, by_rank).values():
            sums.append(int(tree.sequence_lengths[by_rank[list(pair)]].sum()))
    return min(sums, default=None)


@dataclass(frozen=True)
class _Place:
    """A node at which sequences share what is above and in it."""

    tree: int
    node: int
    parts: bool  # whether two of them part there, both going on
    saved: int  # tokens that those that fit need not compute again


class _Passing:
    """The sequences that pass through each node of a tree, by length."""

    def __init__(self, tree: PrefixTree, limit: int) -> None:
        self.tree = tree
        self.limit = limit
        self.by_rank = _by_length(tree)
        self.pairs = _parting_pairs(tree, self.by_rank)
        self.lengths = tree.sequence_lengths[self.by_rank]
        self.ranks, self.offsets, self.ends = _ranks_below(tree, self.by_rank)
        self.sums = offsets_of(self.lengths[self.ranks])
        # No node has more sequences that fit.
        self.most = int((np.cumsum(self.lengths[self.lengths > 0]) <= limit).sum())

    def places(self, index: int) -> Iterator[_Place]:
        """Each node that at least two sequences that fit pass through."""
        tree = self.tree
        for node in np.flatnonzero(tree.path_counts >= 2).tolist():
            first, last = self.offsets[node], self.offsets[self.ends[node]]
            parts = self._parts(node)
            if self.sums[last] - self.sums[first] <= self.limit:
                fitting = int(last - first)
            else:
                fitting = self.order(node)[1]
            if fitting >= 2:
                depth = int(tree.depth_starts[node] + tree.node_lengths[node])
                yield _Place(index, node, parts, (fitting - 1) * depth)

    def order(self, node: int) -> tuple[Ints, int]:
        """The two that part at a node, if they fit, then the shortest; and how many of them fit."""
        through = self.ranks[self.offsets[node] : self.offsets[self.ends[node]]]
        if self.most < len(through):
            through = np.partition(through, self.most)[: self.most]
        through = np.sort(through)
        if self._parts(node):
            pair = self.pairs[node]
            through = np.concatenate([pair, through[~np.isin(through, pair)]])
        fitting = int((np.cumsum(self.lengths[through]) <= self.limit).sum())
        return self.by_rank[through], fitting

    def _parts(self, node: int) -> bool:
        pair = self.pairs.get(node)
        return pair is not None and int(self.lengths[list(pair)].sum()) <= self.limit


def _by_length(tree: PrefixTree) -> Ints:
    # Of equal lengths the first; ranks are places in this order.
    return np.argsort(tree.sequence_lengths, kind="stable").astype(np.int64)


def _ranks_below(tree: PrefixTree, by_rank: Ints) -> tuple[Ints, Ints, Ints]:
    """Ranks in the order of the nodes they end in, where each node's begin, and nodes below end."""
    nodes = tree.sequence_nodes[by_rank]
    ranks = np.argsort(nodes, kind="stable").astype(np.int64)[int((nodes < 0).sum()) :]
    offsets = offsets_of(np.bincount(nodes[nodes >= 0], minlength=tree.num_nodes).astype(np.int64))
    ends = np.searchsorted(tree.node_starts[:-1], tree.subtree_ends).astype(np.int64)
    return ranks, offsets, ends


def _parting_pairs(tree: PrefixTree, by_rank: Ints) -> dict[int, tuple[int, int]]:
    """Ranks of the two shortest sequences that part at each branch point, by node."""
    if not tree.num_nodes:
        return {}
    ranks, offsets, ends = _ranks_below(tree, by_rank)
    shortest = range_minima(ranks, offsets[:-1], offsets[ends])
    order = np.lexsort((shortest, tree.parents))
    order = order[tree.parents[order] >= 0]
    parents = tree.parents[order]
    firsts = np.flatnonzero(np.append(True, parents[1:] != parents[:-1])[: len(parents)])
    seconds = firsts[firsts + 1 < len(parents)] + 1
    seconds = seconds[parents[seconds] == parents[seconds - 1]]
    return {
        int(parents[place]): (int(shortest[order[place - 1]]), int(shortest[order[place]]))
        for place in seconds.tolist()
    }
