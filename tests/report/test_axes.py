from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from treetrain.report.axes import find_ticks


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e12))
def test_ticks_lie_within_and_are_few(spans: float, span: float) -> None:
    low = spans * span
    ticks = find_ticks(low, low + span)
    slack = 1e-6 * max(abs(low), span)
    assert len(ticks) <= 8
    assert all(low - slack <= tick <= low + span + slack for tick in ticks)
    assert ticks == sorted(ticks)


def test_an_empty_or_endless_span_has_no_ticks() -> None:
    assert find_ticks(1, 1) == find_ticks(0, float("inf")) == find_ticks(0, float("nan")) == []
