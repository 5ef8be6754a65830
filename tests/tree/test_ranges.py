from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from treetrain.tree.ranges import (
    join_ranges,
    offsets_of,
    range_minima,
    sum_along_paths,
    take_ranges,
)

ranges = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=12)


def columns(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    table = np.array(pairs, np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def test_offsets_start_with_zero_and_end_with_the_sum() -> None:
    assert offsets_of(np.array([2, 0, 3])).tolist() == [0, 2, 2, 5]
    assert offsets_of(np.zeros(0, np.int64)).tolist() == [0]


@given(ranges)
def test_joined_ranges_are_the_ranges_one_after_another(pairs: list[tuple[int, int]]) -> None:
    expected = [start + step for start, length in pairs for step in range(length)]
    assert join_ranges(*columns(pairs)).tolist() == expected


@given(ranges, st.sampled_from([1, 100]))
def test_taken_ranges_are_the_slices_joined(pairs: list[tuple[int, int]], scale: int) -> None:
    values = np.arange(50 * scale, dtype=np.int32)[::-1].copy()
    starts, lengths = (column * scale for column in columns(pairs))
    expected = [values[s : s + n] for s, n in zip(starts, lengths, strict=True)]
    taken = take_ranges(values, starts, lengths)
    assert taken.dtype == np.int32
    assert taken.tolist() == np.concatenate([values[:0], *expected]).tolist()


def test_many_short_ranges_are_taken_in_order() -> None:
    starts = np.arange(10_000)[::-1].copy()
    taken = take_ranges(np.arange(10_001), starts, np.full(10_000, 2))
    assert taken.reshape(-1, 2).tolist() == [[start, start + 1] for start in starts.tolist()]


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=40), st.data())
def test_range_minima_are_the_minima_of_the_slices(values: list[int], data: st.DataObject) -> None:
    count = len(values)
    starts = data.draw(st.lists(st.integers(0, count - 1), max_size=8))
    ends = [data.draw(st.integers(start + 1, count)) for start in starts]
    found = range_minima(np.array(values), np.array(starts, np.int64), np.array(ends, np.int64))
    assert found.tolist() == [min(values[s:e]) for s, e in zip(starts, ends, strict=True)]


def test_sums_along_paths_include_the_node_and_all_above() -> None:
    # 0 has children 1 and 3, 1 has child 2; 4 is another root.
    values, ends = np.array([1, 10, 100, 1000, 5]), np.array([4, 3, 3, 4, 5])
    assert sum_along_paths(values, ends).tolist() == [1, 11, 111, 1001, 5]
