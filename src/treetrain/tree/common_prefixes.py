"""How much sorted neighbours have in common, and which neighbours that encloses."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from treetrain.tree.ranges import Ints

_WINDOWS = (16, 64, 256)
_WORDS_AT_ONCE = 1 << 17


def neighbour_prefixes(words: NDArray[np.int32], starts: Ints, lengths: Ints) -> Ints:
    """Return how many words each sequence has in common with the one before it.

    Args:
        words: words of all sequences, [n].
        starts: index of each sequence's first word, [S].
        lengths: words of each sequence, [S].

    Returns:
        Common words, [S]; 0 for the first sequence.
    """
    shared = np.zeros(len(starts), np.int64)
    limits = np.minimum(lengths[1:], lengths[:-1])
    pairs = np.flatnonzero(limits > 0) + 1
    padded = np.append(words, np.zeros(_WINDOWS[-1], np.int32))
    # Most pairs part early: short windows over all of them, whole comparisons for the few left.
    for window in _WINDOWS:
        equal = np.empty(len(pairs), np.int64)
        for first in range(0, len(pairs), _WORDS_AT_ONCE // window):
            some = slice(first, first + _WORDS_AT_ONCE // window)
            right = starts[pairs[some]] + shared[pairs[some]]
            left = starts[pairs[some] - 1] + shared[pairs[some]]
            equal[some] = _equal_words(padded, left, right, window=window)
        shared[pairs] = np.minimum(shared[pairs] + equal, limits[pairs - 1])
        pairs = pairs[(equal == window) & (shared[pairs] < limits[pairs - 1])]
    for pair in pairs.tolist():
        done, limit = int(shared[pair]), int(limits[pair - 1])
        left, right = int(starts[pair - 1]), int(starts[pair])
        differs = words[left + done : left + limit] != words[right + done : right + limit]
        place = int(differs.argmax())
        shared[pair] = done + place if differs[place] else limit
    return shared


def _equal_words(words: NDArray[np.int32], left: Ints, right: Ints, *, window: int) -> Ints:
    """Return the equal words at the start of each pair of windows, [n]."""
    windows = sliding_window_view(words, window)
    differs = windows[left] != windows[right]
    places = differs.argmax(axis=1)
    return np.where(differs[np.arange(len(places)), places], places, window)


def enclosing_groups(shared: Ints) -> tuple[Ints, Ints]:
    """Return the group of sorted sequences that have in common what two neighbours have.

    Args:
        shared: tokens that each sequence has in common with the one before it, [n]; 0 for the
            first.

    Returns:
        First sequence of each group and one past its last, [n] each: the nearest sequence before (0
        if none) and after (n if none) that shares less with the one before it.
    """
    count = len(shared)
    firsts = [0] * count
    ends = [count] * count
    values: list[int] = shared.tolist()
    open_groups: list[int] = []
    for index, value in enumerate(values):
        while open_groups and values[open_groups[-1]] > value:
            ends[open_groups.pop()] = index
        if open_groups:
            last = open_groups[-1]
            firsts[index] = firsts[last] if values[last] == value else last
        open_groups.append(index)
    return np.array(firsts, np.int64), np.array(ends, np.int64)
