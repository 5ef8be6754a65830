"""Dividing the tokens of a tree among partitions, in one walk from the leaves to the roots.

Every token has a *level*, not lower than those below it, and every level is divided by itself:
what a partition holds has one level and hangs from tokens of higher ones; only pieces that begin at
roots and hang from nothing are mixed. So partitions never hang from one another in a circle. It
follows that all the path above a partition lies in the partitions above it: its deepest cut token
stands in a piece of its parent, and what is above that piece is part of the path above the parent.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from treetrain.tree.pieces import Filling, Piece, size_of, sum_sizes
from treetrain.tree.prefix_tree import PrefixTree
from treetrain.tree.ranges import Ints


class Limits(NamedTuple):
    """What a partition may hold.

    Attributes:
        capacity: most tokens.
        height: most tokens on one path, not more than `capacity`.
    """

    capacity: int
    height: int


class Manner(NamedTuple):
    """How full partitions are made; fuller ones are fewer, and more of them lie above one another.

    Attributes:
        least: room, as a share of the capacity, for which a piece is divided; None: never.
        keep: largest share of the capacity that stays with its parent instead of making a partition
            that is not full.
    """

    least: float | None
    keep: float


def divide_tokens(tree: PrefixTree, limits: Limits, manner: Manner) -> tuple[Ints, Ints]:
    """Divide the tokens of a tree among partitions.

    Args:
        tree: the prefix tree, any number of roots.
        limits: what a partition may hold.
        manner: how full they are made.

    Returns:
        Packed index of the first token of each stretch of one node and one partition, ascending,
        [n], and the partition of each, [n], in no particular order.
    """
    partitions = _Division(tree, limits, manner).divide()
    stretches = [
        (start, end, index)
        for index, pieces in enumerate(partitions)
        for piece in pieces
        for start, end in piece.stretches()
    ]
    table = np.array(sorted(stretches), np.int64).reshape(-1, 3)
    starts, owners = table[:, 0], table[:, 2]
    is_first = np.isin(starts, tree.node_starts) | (np.diff(owners, prepend=-1) != 0)
    return starts[is_first], owners[is_first]


class _Open:
    """Partitions below a node that have room, by level.

    What hangs from the node or above it may join any of them: everything in them hangs from one
    path, and that path leads through the node.
    """

    def __init__(self) -> None:
        self.count = 0
        self._rooms: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)

    def add(self, level: int, room: int, partition: int) -> None:
        if room:
            insort(self._rooms[level], (room, partition))
            self.count += 1

    def pop_fitting(self, level: int, size: int) -> tuple[int, int] | None:
        """Take out the one with the least room that is enough: its room and its index."""
        rooms = self._rooms.get(level, [])
        place = bisect_left(rooms, (size, -1))
        if place == len(rooms):
            return None
        self.count -= 1
        return rooms.pop(place)

    def join(self, other: _Open) -> _Open:
        """Put both into one; the smaller is moved into the larger."""
        if self.count < other.count:
            return other.join(self)
        for level, rooms in other._rooms.items():
            for room, partition in rooms:
                self.add(level, room, partition)
        return self


@dataclass
class _Top:
    """The piece that a node's first token begins, and its level."""

    piece: Piece
    level: int


class _Division:
    def __init__(self, tree: PrefixTree, limits: Limits, manner: Manner) -> None:
        self._tree = tree
        self._capacity, self._height = limits
        self._keep = manner.keep * limits.capacity
        self._least = None
        if manner.least is not None:
            self._least = max(int(manner.least * limits.capacity), 1)
        self._partitions: list[list[Piece]] = []

    def divide(self) -> list[list[Piece]]:
        """Return the pieces of each partition."""
        starts: list[int] = self._tree.node_starts.tolist()
        parents: list[int] = self._tree.parents.tolist()
        # Index -1 collects what is left at the roots.
        tops = [list[_Top]() for _ in range(len(parents) + 1)]
        opens: list[_Open | None] = [None] * (len(parents) + 1)
        for node in range(len(parents) - 1, -1, -1):
            below = opens[node] or _Open()
            level, pieces = self._gather(tops[node], below)
            end = starts[node + 1]
            top = self._climb(_Top(Piece(end, end, pieces), level), starts[node], below)
            parent = parents[node]
            tops[parent].append(top)
            beside = opens[parent]
            opens[parent] = below if beside is None else beside.join(below)
            tops[node], opens[node] = [], None
        self._place_roots(tops[-1], opens[-1] or _Open())
        return self._partitions

    def _gather(self, tops: list[_Top], below: _Open) -> tuple[int, list[Piece]]:
        """Place what does not stay with a node, and return the level it starts with and what does.

        Pieces of lower levels than the highest are whole; those of the highest stay if the node's
        last token finds room with them.
        """
        by_level = _sort_by_level(tops)
        level = max(by_level, default=1)
        pieces = by_level.pop(level, [])
        for lower, whole in by_level.items():
            self._place(lower, whole, below)
        while pieces and not self._has_room(pieces):
            pieces = self._overflow(level, pieces, below)
            level += 1
        return level, pieces

    def _has_room(self, pieces: list[Piece]) -> bool:
        return sum_sizes(pieces) < self._capacity and self._is_low(pieces)

    def _is_low(self, pieces: list[Piece]) -> bool:
        return all(piece.height < self._height for piece in pieces)

    def _overflow(self, level: int, pieces: list[Piece], below: _Open) -> list[Piece]:
        """Fill partitions and return what stays with the node, one level higher."""
        filling = self._fill(level, pieces, below)
        rest = filling.at_token + filling.at_stems
        staying = sum_sizes(filling.stems) + filling.total
        small = filling.total < self._keep and staying < self._capacity
        if small and self._is_low(rest):
            filling.leave_at_stems()
            return filling.stems + filling.at_token
        if filling.at_stems:
            # They hang from one path through the node, but not from the paths of those in `below`.
            self._open_partition(level, rest, below)
        else:
            self._place(level, rest, below)
        return filling.stems

    def _fill(self, level: int, pieces: list[Piece], below: _Open) -> Filling:
        filling = Filling(pieces, self._capacity, self._least)
        while filling.total >= self._capacity:
            taken, _ = filling.take()
            self._open_partition(level, taken, below)
        filling.measure_stems()
        return filling

    def _climb(self, top: _Top, start: int, below: _Open) -> _Top:
        """Extend a piece by a node's tokens, from the last to the first, cut where it is full."""
        piece = top.piece
        while True:
            room = min(self._capacity - piece.size, self._height - piece.height)
            length = min(room, piece.start - start)
            piece = Piece(piece.start - length, piece.end, piece.below)
            if piece.start == start:
                return _Top(piece, top.level)
            self._place(top.level, [piece], below)
            top = _Top(piece, top.level + 1)
            piece = Piece(piece.start, piece.start, [])

    def _place(self, level: int, pieces: list[Piece], below: _Open) -> None:
        """Put whole pieces of one level into partitions with room, or into new ones."""
        for piece in sorted(pieces, key=size_of, reverse=True):
            if not self._join(level, piece, below):
                self._open_partition(level, [piece], below)

    def _join(self, level: int, piece: Piece, below: _Open) -> bool:
        """Put a piece where least room, but enough, is left at its level, if there is any."""
        found = below.pop_fitting(level, piece.size)
        if found is None:
            return False
        room, partition = found
        self._partitions[partition].append(piece)
        below.add(level, room - piece.size, partition)
        return True

    def _open_partition(self, level: int, pieces: list[Piece], below: _Open) -> None:
        below.add(level, self._capacity - sum_sizes(pieces), len(self._partitions))
        self._partitions.append(pieces)

    def _place_roots(self, tops: list[_Top], below: _Open) -> None:
        """Place what begins at roots, which hangs from nothing and goes with anything.

        Whole trees fill what has room; then each level makes full partitions, and what is left of
        all levels shares the last ones, the highest levels first.
        """
        by_level = _sort_by_level(tops)
        by_level[1] = [piece for piece in by_level[1] if not self._join(1, piece, below)]
        rest: list[list[Piece]] = []
        while by_level:
            level = min(by_level)
            filling = self._fill(level, by_level.pop(level), _Open())
            filling.leave_at_stems()
            rest.append(filling.at_token)
            if filling.stems:
                by_level[level + 1] += filling.stems
        last = _Open()
        for pieces in reversed(rest):
            self._place(0, pieces, last)


def _sort_by_level(tops: list[_Top]) -> defaultdict[int, list[Piece]]:
    by_level: defaultdict[int, list[Piece]] = defaultdict(list)
    for top in tops:
        by_level[top.level].append(top.piece)
    return by_level
