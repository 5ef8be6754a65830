from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treetrain.report.axes import find_ticks, say_short

NUMBERS = st.floats(-1e12, 1e12, allow_nan=False)


@given(NUMBERS, st.floats(1e-6, 1e12))
def test_ticks_lie_within_and_are_few(low: float, span: float) -> None:
    ticks = find_ticks(low, low + span)
    slack = 1e-6 * max(abs(low), span)
    assert len(ticks) <= 8
    assert all(low - slack <= tick <= low + span + slack for tick in ticks)
    assert ticks == sorted(ticks)


def test_an_empty_or_endless_span_has_no_ticks() -> None:
    assert find_ticks(1, 1) == find_ticks(0, float("inf")) == find_ticks(0, float("nan")) == []


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (999, "999"), (999.9, "1k"), (1234, "1.23k"), (-2.5e6, "-2.5M"), (7.88e14, "788T")],
)
def test_figures_are_short(value: float, text: str) -> None:
    assert say_short(value) == text
