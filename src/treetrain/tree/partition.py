"""Partitions: the parts of a tree that go through a model one after the other.

`divide` says which tokens go together; here are the type, and the choice among several divisions.
What one partition reads, as a tree of its own, is the affair of `context`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from treetrain.errors import CapacityError, check_number, check_type
from treetrain.tree.cut import cut_nodes
from treetrain.tree.divide import Limits, Manner, divide_tokens
from treetrain.tree.prefix_tree import PrefixTree
from treetrain.tree.ranges import Ints, join_ranges, offsets_of, sum_along_paths

# From partitions of whole pieces, which lie flat, to full ones, which are few.
_MANNERS = (Manner(None, 0), Manner(1 / 16, 1 / 2), Manner(1 / 64, 1))
_EVEN_ROUNDS = 3
_MANY = 64


@dataclass(frozen=True, eq=False)
class Partitions:
    """A tree's tokens divided into partitions, each one forward pass, numbered in running order.

    A partition consists of connected *pieces*. The tokens of other partitions from which they hang,
    its *cut tokens*, lie on one path; a piece that begins at a root hangs from nothing. The
    partition hangs from the one that holds its deepest cut token, and the path up to that token is
    its *gateway*: all of it lies in the partitions above. Running order is depth-first, parents
    first, so that the descendants of a partition follow it as one interval. Arrays are int64 and
    read-only.

    Attributes:
        tree: the tree with its nodes cut so that each lies in one partition: the same tokens in the
            same packed order, nodes no longer maximal.
        node_partitions: partition of each of its nodes, [N].
        parents: partition from which each hangs, smaller than its own, [P]; -1 for none.
        capacity: most tokens that a partition may hold.
        path_capacity: most tokens of one path that a partition may hold, or None.
        lower_bound: number of partitions that every division needs, if not more.
    """

    tree: PrefixTree
    node_partitions: Ints
    parents: Ints
    capacity: int
    path_capacity: int | None
    lower_bound: int

    def __post_init__(self) -> None:
        self.node_partitions.flags.writeable = False
        self.parents.flags.writeable = False

    def __repr__(self) -> str:
        return (
            f"Partitions({self.num_partitions} of at most {self.capacity} tokens, "
            f"{self.tree.num_tokens} tree tokens, {self.peak} on the largest path)"
        )

    @property
    def num_partitions(self) -> int:
        """Number of partitions P."""
        return len(self.parents)

    @cached_property
    def sizes(self) -> Ints:
        """Tokens of each partition, [P]."""
        sizes = np.zeros(self.num_partitions, np.int64)
        np.add.at(sizes, self.node_partitions, self.tree.node_lengths)
        return _frozen(sizes)

    @cached_property
    def heights(self) -> Ints:
        """Tokens of the longest path within each partition, [P]."""
        heights = np.zeros(self.num_partitions, np.int64)
        ends = self.tree.depth_starts + self.tree.node_lengths
        within = ends - self.tree.depth_starts[self.piece_heads]
        np.maximum.at(heights, self.node_partitions, within)
        return _frozen(heights)

    @cached_property
    def gateway_sizes(self) -> Ints:
        """Tokens of each partition's gateway, [P]; 0 for a partition that hangs from none."""
        sizes = np.zeros(self.num_partitions, np.int64)
        heads = self.piece_heads
        np.maximum.at(sizes, self.node_partitions, self.tree.depth_starts[heads])
        return _frozen(sizes)

    @cached_property
    def path_sizes(self) -> Ints:
        """Tokens of each partition and of all above it, [P]."""
        return _frozen(sum_along_paths(self.sizes, self.descendant_ends))

    @cached_property
    def descendant_ends(self) -> Ints:
        """Partition one past the last descendant of each, [P]."""
        ends = np.arange(1, self.num_partitions + 1, dtype=np.int64)
        for partition in range(self.num_partitions - 1, -1, -1):
            parent = self.parents[partition]
            if parent >= 0:
                ends[parent] = max(ends[parent], ends[partition])
        return _frozen(ends)

    @property
    def peak(self) -> int:
        """Most tokens of a partition and all above it, which are in memory together."""
        return int(self.path_sizes.max(initial=0))

    @property
    def num_cuts(self) -> int:
        """Number of pieces that hang from another partition."""
        return int((self._is_head & (self.tree.parents >= 0)).sum())

    @cached_property
    def piece_heads(self) -> Ints:
        """First node of the piece that holds each node, [N]."""
        heads = np.where(self._is_head, np.arange(self.tree.num_nodes), self.tree.parents)
        while not np.array_equal(further := heads[heads], heads):
            heads = further
        return _frozen(heads)

    @cached_property
    def _is_head(self) -> np.ndarray:
        parents = self.tree.parents
        return (parents < 0) | (self.node_partitions != self.node_partitions[parents])

    @cached_property
    def _own_order(self) -> tuple[Ints, Ints]:
        """Nodes of all partitions as `own_nodes` has them, [N], and where each begins, [P + 1]."""
        depths = self.tree.depth_starts[self.piece_heads]
        order = np.lexsort((-depths, self.node_partitions))
        counts = np.bincount(self.node_partitions, minlength=self.num_partitions)
        return _frozen(order), offsets_of(counts.astype(np.int64))

    def own_nodes(self, partition: int) -> Ints:
        """Return the nodes of a partition as they stand in its row.

        Args:
            partition: index of the partition.

        Returns:
            Nodes of `tree`: pieces with the deepest cut token first and those that begin at a root
            last, pieces of one token and the nodes of a piece in packed order. After the nodes of
            the gateway this is a depth-first order of both.
        """
        order, offsets = self._own_order
        return order[offsets[partition] : offsets[partition + 1]]

    def gateway_nodes(self, partition: int) -> Ints:
        """Return the nodes of a partition's gateway.

        Args:
            partition: index of the partition.

        Returns:
            Nodes of `tree` from a root to the one whose last token is the deepest cut token.
        """
        node = int(self.tree.parents[self.own_nodes(partition)[0]])
        firsts: list[int] = []
        counts: list[int] = []
        while node >= 0:
            firsts.append(int(self.tree.run_heads[node]))
            counts.append(node + 1 - firsts[-1])
            node = int(self.tree.parents[firsts[-1]])
        return join_ranges(np.array(firsts[::-1], np.int64), np.array(counts[::-1], np.int64))


def partition_tree(
    tree: PrefixTree,
    capacity: int,
    *,
    path_capacity: int | None = None,
    peak_capacity: int | None = None,
) -> Partitions:
    """Divide a tree into partitions that go through a model one after the other.

    Each token is computed once, in one partition; nodes are cut where they have to be. A tree that
    fits is one partition. Otherwise there are two ways to have few tokens in memory: partitions of
    whole pieces have little beside the way to their descendants and lie flat, so that the largest
    path of partitions is hardly longer than the tree is deep; full partitions are fewer, but more
    of them lie above one another. Several divisions are made, and of those with at most an eighth
    more partitions than the fewest the one with the smallest `peak` is taken. Last, smaller
    capacities that need no more partitions are tried, which make them even.

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
        ([1, 2, 5, 6, 7, 3, 4], [0, 1, 2, 5, 7])
        >>> partitions.node_partitions.tolist(), partitions.parents.tolist(), partitions.peak
        ([0, 1, 2, 1], [-1, 0, 1], 7)
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
            best = min(best, tried, key=lambda division: division.peak)
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
    sizes = (tree.subtree_ends - tree.node_starts[:-1]).tolist()
    lengths, parents = tree.node_lengths.tolist(), tree.parents.tolist()
    below = [0] * (tree.num_nodes + 1)
    heights = [0] * (tree.num_nodes + 1)
    for node in range(tree.num_nodes - 1, -1, -1):
        heights[node] += lengths[node]
        by_size = -(-sizes[node] // limits.capacity) - 1
        by_height = -(-heights[node] // limits.height) - 1
        below[parents[node]] += max(below[node], by_size, by_height)
        heights[parents[node]] = max(heights[parents[node]], heights[node])
    return max(-(-tree.num_tokens // limits.capacity), below[-1] + 1)


def _frozen(array: Ints) -> Ints:
    array.flags.writeable = False
    return array
