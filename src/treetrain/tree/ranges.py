"""Joining and searching many index ranges at once: the array steps that building shares."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

_RANGES_AT_ONCE = 4096


def offsets_of(lengths: Ints) -> Ints:
    """Return the place at which each of several joined ranges starts, and the end.

    Args:
        lengths: number of entries of each range, [n].

    Returns:
        Running sums starting with 0, [n + 1], int64.
    """
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def join_ranges(starts: Ints, lengths: Ints) -> Ints:
    """Return the integers of several ranges one after another.

    Args:
        starts: first integer of each range, [n].
        lengths: number of integers of each range, [n]; 0 is allowed.

    Returns:
        The ranges joined, [sum of lengths], int64.

    Example:
        >>> join_ranges(np.array([5, 0]), np.array([2, 3])).tolist()
        [5, 6, 0, 1, 2]
    """
    offsets = offsets_of(lengths)
    joined = np.repeat(starts - offsets[:-1], lengths)
    joined += np.arange(offsets[-1], dtype=np.int64)
    return joined


def take_ranges(values: NDArray[Any], starts: Ints, lengths: Ints) -> NDArray[Any]:
    """Return several ranges of an array one after another.

    Args:
        values: any entries, [n].
        starts: index of each range's first entry, [m].
        lengths: entries of each range, [m].

    Returns:
        The entries joined, [sum of lengths], of the dtype of `values`.
    """
    offsets = offsets_of(lengths)
    taken = np.empty(offsets[-1], values.dtype)
    if len(taken) > 64 * len(starts):
        # Long ranges are copied whole: an index per entry would cost more than the entries.
        pieces = zip(offsets.tolist(), starts.tolist(), lengths.tolist(), strict=False)
        for place, start, length in pieces:
            taken[place : place + length] = values[start : start + length]
        return taken
    # Few ranges at a time, so that the indices of all of them never exist at once.
    for first in range(0, len(starts), _RANGES_AT_ONCE):
        some = slice(first, first + _RANGES_AT_ONCE)
        indices = join_ranges(starts[some], lengths[some])
        taken[offsets[first] : offsets[first] + len(indices)] = values[indices]
    return taken


def range_minima(values: Ints, starts: Ints, ends: Ints) -> Ints:
    """Return the smallest value of each range.

    Args:
        values: integers, [n].
        starts: first index of each range, [m].
        ends: index one past each range, [m]; larger than the start.

    Returns:
        Smallest value of each range, [m], int64.
    """
    minima = np.empty(len(starts), np.int64)
    # Two windows of the largest power of two that fits cover a range, however they overlap.
    exponents = np.frexp((ends - starts).astype(np.float64))[1] - 1
    windows, width = values, 1
    for exponent in range(int(exponents.max(initial=0)) + 1):
        of_this_width = np.flatnonzero(exponents == exponent)
        first, last = starts[of_this_width], ends[of_this_width] - width
        minima[of_this_width] = np.minimum(windows[first], windows[last])
        windows = np.minimum(windows[:-width], windows[width:])
        width *= 2
    return minima


def sum_along_paths(values: Ints, ends: Ints) -> Ints:
    """Return the sum over each node and the nodes above it.

    Args:
        values: one value for each node, in depth-first order, [N].
        ends: node index one past the last node below each node, [N].

    Returns:
        Sum of the values on the way from the root to each node, both included, [N], int64.
    """
    # A value counts from its node to the end of its subtree.
    steps = np.append(values, 0)
    np.subtract.at(steps, ends, values)
    return np.cumsum(steps[:-1])
