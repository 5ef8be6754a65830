from __future__ import annotations

import sys

from hypothesis import example, given
from hypothesis import strategies as st

from treetrain.report.axes import find_ticks

FINITE = st.floats(allow_nan=False, allow_infinity=False)


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e12))
def test_ticks_lie_within_and_are_few(spans: float, span: float) -> None:
    low = spans * span
    ticks = find_ticks(low, low + span)
    slack = 1e-6 * max(abs(low), span)
    assert len(ticks) <= 8
    assert all(low - slack <= tick <= low + span + slack for tick in ticks)
    assert ticks == sorted(ticks)


@given(FINITE, FINITE)
@example(0.0, sys.float_info.min / 2**52)
@example(1.0, 1.0 + sys.float_info.epsilon)
@example(-sys.float_info.max, sys.float_info.max)
def test_any_two_numbers_have_few_ticks_and_all_differ(one: float, other: float) -> None:
    ticks = find_ticks(min(one, other), max(one, other))
    assert len(ticks) <= 8
    assert len(set(ticks)) == len(ticks)


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_ticks_of_counts_are_whole(low: int, span: int) -> None:
    ticks = find_ticks(low, low + span, whole=True)
    assert all(tick == int(tick) for tick in ticks)


def test_ticks_are_the_decimals_they_stand_for() -> None:
    assert find_ticks(0, 0.7) == [0.0, 0.2, 0.4, 0.6]
    assert find_ticks(0, 7e-9) == [0.0, 2e-9, 4e-9, 6e-9]


def test_an_empty_or_endless_span_has_no_ticks() -> None:
    assert find_ticks(1, 1) == find_ticks(0, float("inf")) == find_ticks(0, float("nan")) == []
