"""Pieces of a tree that hang from one token, and filling partitions with them.

`divide` finds the pieces and says when partitions are filled; which pieces go together, and which
of them is divided so that a partition is full, is decided here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence


class Piece:
    """A connected part of a tree whose first tokens are one stretch of packed order.

    Args:
        start: packed index of the stretch's first token, kept as an attribute.
        end: packed index one past the stretch's last token, kept as an attribute.
        below: pieces that hang from the stretch's last token, kept as an attribute.

    Attributes:
        size: tokens of all of it.
        height: tokens of its longest path.
    """

    __slots__ = ("below", "end", "height", "size", "start")

    def __init__(self, start: int, end: int, below: list[Piece]) -> None:
        self.start = start
        self.end = end
        self.below = below
        self.measure()

    def measure(self) -> None:
        """Count size and height anew from those of the pieces below."""
        length = self.end - self.start
        self.size = length + sum_sizes(self.below)
        self.height = length + max((piece.height for piece in self.below), default=0)

    def stretches(self) -> list[tuple[int, int]]:
        """All its stretches, first and one past the last packed index, in no order."""
        found: list[tuple[int, int]] = []
        waiting: list[Piece] = [self]
        while waiting:
            piece = waiting.pop()
            found.append((piece.start, piece.end))
            waiting.extend(piece.below)
        return found


def size_of(piece: Piece) -> int:
    """Return the tokens of a piece.

    Args:
        piece: the piece.

    Returns:
        Its size.
    """
    return piece.size


def sum_sizes(pieces: Sequence[Piece]) -> int:
    """Return the tokens of several pieces together.

    Args:
        pieces: the pieces.

    Returns:
        The sum of their sizes.
    """
    return sum(map(size_of, pieces))


class Filling:
    """Fills partitions with pieces that hang from one token, as long as they make a full one.

    A partition takes the largest pieces that fit. Where room is left, one more piece is divided:
    its first stretch, the *stem*, stays behind, and what hangs from it becomes pieces of their own,
    of which one may be divided in turn. All that a partition takes hangs from one path: the token,
    and stems below one another. A stretch from which nothing hangs, or whose tokens are wanted with
    all that hangs from them, is divided inside.

    Args:
        pieces: the pieces, none larger than `capacity`.
        capacity: tokens of a full partition.
        least: room in tokens, at least 1, for which a piece is divided; None: none is divided.

    Attributes:
        stems: what stays behind of divided pieces and hangs from the token.
        total: tokens of the pieces that are left, those that hang from stems included.
    """

    def __init__(self, pieces: Sequence[Piece], capacity: int, least: int | None) -> None:
        self._capacity = capacity
        # Where nothing is divided, no room is small enough to stop looking.
        self._divides = least is not None
        self._least = 1 if least is None else least
        self.stems: list[Piece] = []
        self.total = sum_sizes(pieces)
        self._made: list[Piece] = []
        # The token and the stems below it, each with what is left of the pieces that hang from it,
        # smallest first, and the stems that hang from it.
        self._hubs: list[tuple[list[Piece], list[Piece]]] = [
            (sorted(pieces, key=size_of), self.stems)
        ]

    @property
    def at_token(self) -> list[Piece]:
        """Pieces left that hang from the token."""
        return self._hubs[0][0]

    @property
    def at_stems(self) -> list[Piece]:
        """Pieces left that hang from stems; these lie on one path."""
        return [piece for pieces, _ in self._hubs[1:] for piece in pieces]

    def take(self) -> tuple[list[Piece], int]:
        """Take the pieces of one partition; `total` must be at least the capacity.

        Returns:
            The pieces, and the room that is left beside them.
        """
        while len(self._hubs) > 1 and not self._hubs[-1][0]:
            self._hubs.pop()
        room, taken, marks = self._capacity, list[Piece](), list[int]()
        for pieces, _ in self._hubs:
            marks.append(len(taken))
            if room >= self._least:
                room = _take_fitting(pieces, room, taken)
        while self._divides and room >= self._least:
            if not self._hubs[-1][0]:
                if len(self._hubs) == 1:
                    break
                # What hangs from another stem than the next one would not lie on one path with it.
                room += self._give_up(taken, marks.pop())
            elif self._hubs[-1][0][-1].size <= room:
                room = _take_fitting(self._hubs[-1][0], room, taken)
            else:
                room = self._divide(room, taken, marks)
        self.total -= self._capacity - room
        return taken, room

    def _give_up(self, taken: list[Piece], mark: int) -> int:
        back = taken[mark:]
        del taken[mark:]
        self._hubs.pop()[1].extend(back)
        size = sum_sizes(back)
        self.total -= size
        return size

    def _divide(self, room: int, taken: list[Piece], marks: list[int]) -> int:
        pieces, stems = self._hubs[-1]
        piece = pieces.pop(bisect_right(pieces, room, key=size_of))
        wanted = room - (piece.size - (piece.end - piece.start))
        if wanted > 0:
            stem = Piece(piece.start, piece.end - wanted, [])
            piece.start = stem.end
            piece.measure()
            taken.append(piece)
            room = 0
        else:
            stem = Piece(piece.start, piece.end, [])
            self._hubs.append((sorted(piece.below, key=size_of), stem.below))
            marks.append(len(taken))
            room = _take_fitting(self._hubs[-1][0], room, taken)
        stems.append(stem)
        self._made.append(stem)
        self.total -= stem.size
        return room

    def measure_stems(self) -> None:
        """Count the sizes of the stems; once, when no more is taken."""
        for stem in reversed(self._made):
            stem.measure()

    def leave_at_stems(self) -> None:
        """Leave the pieces that hang from stems with these."""
        for pieces, stems in self._hubs[1:]:
            stems.extend(pieces)
            pieces.clear()
        self.measure_stems()


def _take_fitting(pieces: list[Piece], room: int, taken: list[Piece]) -> int:
    """Move the largest that fit from `pieces`, sorted by size, and return the room that is left."""
    while pieces and room:
        place = bisect_right(pieces, room, key=size_of) - 1
        if place < 0:
            break
        taken.append(pieces.pop(place))
        room -= taken[-1].size
    return room
