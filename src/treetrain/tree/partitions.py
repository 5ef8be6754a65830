"""The type of a divided tree: which partition holds which nodes, and what follows from that.

`partition` makes divisions; what one partition reads, as a tree of its own, is the affair of
`context`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from treetrain.tree.prefix_tree import PrefixTree
from treetrain.tree.ranges import Ints, join_ranges, offsets_of, sum_along_paths


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


def _frozen(array: Ints) -> Ints:
    array.flags.writeable = False
    return array
