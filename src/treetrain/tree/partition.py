"""Partitioning a tree: the parts that go through a model one after the other.

`divide` says which tokens go together and `partitions` holds the result; here one of several
divisions is chosen.
"""

from __future__ import annotations

import numpy as np

from treetrain.errors import CapacityError, check_number, check_type
from treetrain.tree.cut import cut_nodes
from treetrain.tree.divide import Limits, Manner, divide_tokens
from treetrain.tree.partitions import Partitions
from treetrain.tree.prefix_tree import PrefixTree
from treetrain.tree.ranges import Ints

__all__ = ["Partitions", "partition_tree"]

# From partitions of whole pieces, which lie flat, to full ones, which are few.
_MANNERS = (Manner(None, 0), Manner(1 / 16, 1 / 2), Manner(1 / 64, 1))
_EVEN_ROUNDS = 3
_MANY = 64


def partition_tree(
    tree: PrefixTree,
    capacity: int,
    *,
    path_capacity: int | None = None,
    peak_capacity: int | None = None,
) -> Partitions:
    """Divide a tree into partitions that go through a model one after the other.

    Each token is computed once, in one partition; nodes are cut where they have to be, and a tree
    that fits is one partition. There are two ways to have few tokens in memory. Partitions of whole
    pieces lie flat: those above others hold hardly more than what leads to these, so that the
    `peak` stays near the depth of the tree. Full partitions, for which pieces are divided, are
    fewer, but more of them lie above one another. So the flattest of several divisions is taken
    that has at most an eighth more partitions than the lower bound; if none has, of those with at
    most an eighth more than the fewest the one with the smallest peak. Last, few partitions are
    made even: by a smaller capacity, where it needs no more of them.

    Pieces of inner tokens share partitions as those at the leaves do: kept apart they made up to an
    eighth more partitions on combs and random trees, and no peak lower by more than 2 %.

    Args:
        tree: the prefix tree, any number of roots.
        capacity: most tokens of a partition.
        path_capacity: most tokens of a partition on one path; None: no limit of its own.
        peak_capacity: tokens of a partition and all above it that should not be exceeded: of the
            divisions that keep to it the one with the fewest partitions is taken, and the one with
            the smallest peak if none does; None: as said above.

    Returns:
        The partitions; the tree they refer to is their own, with cut nodes.

    Raises:
        CapacityError: a capacity is smaller than one token.

    Example:
        >>> partitions = partition_tree(build_prefix_tree([[1, 2, 3, 4], [1, 2, 5, 6, 7]]), 3)
        >>> partitions.tree.tokens.tolist(), partitions.tree.node_starts.tolist()
        ([1, 2, 5, 6, 7, 3, 4], [0, 2, 5, 7])
        >>> partitions.node_partitions.tolist(), partitions.parents.tolist(), partitions.peak
        ([0, 1, 2], [-1, 0, 0], 5)
    """  # noqa: DOC502 (_check_capacity raises)
    check_type("tree", tree, PrefixTree, "a PrefixTree from build_prefix_tree(sequences)")
    _check_capacity("capacity", capacity)
    for name, limit in (("path_capacity", path_capacity), ("peak_capacity", peak_capacity)):
        if limit is not None:
            _check_capacity(name, limit)
    return _Choice(tree, int(capacity), path_capacity).choose(peak_capacity)


def _check_capacity(name: str, value: int) -> None:
    check_number(name, value, whole=True)
    if value < 1:
        raise CapacityError(f"{name} must be at least 1 token, got {value}")


class _Choice:
    """Divisions of one tree for one pair of capacities."""

    def __init__(self, tree: PrefixTree, capacity: int, path_capacity: int | None) -> None:
        self._tree = tree
        self._capacity = capacity
        self._path_capacity = None if path_capacity is None else int(path_capacity)
        self._lower_bound = _bound_partitions(tree, self._limits(capacity))

    def _limits(self, capacity: int) -> Limits:
        height = capacity if self._path_capacity is None else self._path_capacity
        return Limits(capacity, min(capacity, height))

    def choose(self, peak_capacity: int | None) -> Partitions:
        """Return the division that suits best."""
        made: list[tuple[Partitions, Manner]] = []
        for manner in _MANNERS:
            made.append((self._divide(self._capacity, manner), manner))
            if self._suits(made[-1][0], peak_capacity):
                return self._even_out(*made[-1])
        if peak_capacity is None:
            fewest = min(division.num_partitions for division, _ in made)
            made = [pair for pair in made if pair[0].num_partitions <= _few(fewest)]
        else:
            within = [pair for pair in made if pair[0].peak <= peak_capacity]
            if within:
                return self._even_out(*min(within, key=lambda pair: pair[0].num_partitions))
        return self._even_out(*min(made, key=lambda pair: pair[0].peak))

    def _suits(self, division: Partitions, peak_capacity: int | None) -> bool:
        count = division.num_partitions
        if peak_capacity is None:
            return count <= _few(self._lower_bound)
        return count == self._lower_bound and division.peak <= peak_capacity

    def _even_out(self, best: Partitions, manner: Manner) -> Partitions:
        """Make no more partitions by a smaller capacity, where it matters: where they are few."""
        count = best.num_partitions
        low, high = -(-self._tree.num_tokens // max(count, 1)), self._capacity
        for _ in range(_EVEN_ROUNDS if 1 < count < _MANY else 0):
            if low >= high:
                break
            middle = (low + high) // 2
            tried = self._divide(middle, manner)
            if tried.num_partitions > count:
                low = middle + 1
                continue
            high = middle
            best = min(best, tried, key=lambda made: (made.peak, int(made.sizes.max())))
        return best

    def _divide(self, capacity: int, manner: Manner) -> Partitions:
        starts, owners = divide_tokens(self._tree, self._limits(capacity), manner)
        tree = cut_nodes(self._tree, starts)
        numbers, parents = _order_partitions(owners, _find_parents(tree, owners))
        return Partitions(
            tree=tree,
            node_partitions=numbers[owners],
            parents=parents,
            capacity=self._capacity,
            path_capacity=self._path_capacity,
            lower_bound=self._lower_bound,
        )


def _few(fewest: int) -> int:
    """Return how many partitions still count as few where `fewest` would do."""
    return fewest + fewest // 8


def _find_parents(tree: PrefixTree, owners: Ints) -> Ints:
    """Return the partition from which each hangs, [P], -1 for none."""
    cuts = np.flatnonzero((tree.parents >= 0) & (owners != owners[tree.parents]))
    # The last one written is the deepest.
    cuts = cuts[np.argsort(tree.depth_starts[cuts], kind="stable")]
    parents = np.full(int(owners.max(initial=-1)) + 1, -1, np.int64)
    parents[owners[cuts]] = owners[tree.parents[cuts]]
    return parents


def _order_partitions(owners: Ints, parents: Ints) -> tuple[Ints, Ints]:
    """Return the place of each partition in running order, [P], and the parents in that order."""
    children: list[list[int]] = [[] for _ in range(len(parents) + 1)]
    # Siblings run in packed order of their first tokens.
    _, firsts = np.unique(owners, return_index=True)
    for partition in np.argsort(-firsts).tolist():
        children[parents[partition]].append(partition)
    order: list[int] = []
    waiting = children[-1]
    while waiting:
        order.append(waiting.pop())
        waiting.extend(children[order[-1]])
    # One entry more than partitions, so that index -1 (none) finds -1.
    places = np.full(len(order) + 1, -1, np.int64)
    places[order] = np.arange(len(order))
    return places[:-1], places[parents[order]]


def _bound_partitions(tree: PrefixTree, limits: Limits) -> int:
    """Return a number of partitions that every division needs.

    Of the partitions that hold tokens at or below a token, all but the one that holds the token
    itself have cut tokens there, and so belong to no other such subtree beside it: their number is
    at least what the subtree's tokens and depth ask for, less one, and at least the sum over
    disjoint subtrees further down. One more holds a root and hangs from nothing.
    """
    if not tree.num_nodes:
        return 0
    sizes: list[int] = (tree.subtree_ends - tree.node_starts[:-1]).tolist()
    lengths: list[int] = tree.node_lengths.tolist()
    parents: list[int] = tree.parents.tolist()
    # Index -1 collects what is at the roots.
    below = [0] * (tree.num_nodes + 1)
    heights: list[int] = [0] * (tree.num_nodes + 1)
    for node in range(tree.num_nodes - 1, -1, -1):
        heights[node] += lengths[node]
        by_size = -(-sizes[node] // limits.capacity) - 1
        by_height = -(-heights[node] // limits.height) - 1
        below[parents[node]] += max(below[node], by_size, by_height)
        heights[parents[node]] = max(heights[parents[node]], heights[node])
    return max(-(-tree.num_tokens // limits.capacity), below[-1] + 1)
