from __future__ import annotations

from itertools import pairwise, takewhile

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from treetrain.tree.common_prefixes import enclosing_groups, neighbour_prefixes


def count_equal(left: list[int], right: list[int]) -> int:
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False))))


@given(st.lists(st.lists(st.integers(0, 1), max_size=6), max_size=8), st.integers(1, 150))
def test_common_prefixes_are_those_of_neighbours(rows: list[list[int]], scale: int) -> None:
    stretched = sorted([entry for entry in row for _ in range(scale)] for row in rows)
    lengths = np.array([len(row) for row in stretched], np.int64)
    words = np.array([entry for row in stretched for entry in row], np.int32)
    found = neighbour_prefixes(words, np.cumsum(lengths) - lengths, lengths)
    expected = [count_equal(left, right) for left, right in pairwise(stretched)]
    assert found.tolist() == [0, *expected][: len(rows)]


@given(st.lists(st.integers(0, 4), max_size=12))
def test_groups_reach_to_the_nearest_that_share_less(shared: list[int]) -> None:
    firsts, ends = enclosing_groups(np.array(shared, np.int64))
    for index, value in enumerate(shared):
        less = [place for place, other in enumerate(shared) if other < value]
        assert firsts[index] == max((p for p in less if p < index), default=0)
        assert ends[index] == min((p for p in less if p > index), default=len(shared))
