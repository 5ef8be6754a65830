from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from tests.report.hostile import HOSTILE, assert_harmless

from treetrain.report.draw_curves import MOST_POINTS, Line, draw_curves, thin_out

VALUES = st.floats(allow_nan=True, allow_infinity=True)


@given(st.lists(VALUES, max_size=30), st.booleans())
def test_any_values_make_a_figure_without_nan(values: list[float], from_zero: bool) -> None:
    figure = draw_curves("loss", [Line("a", list(enumerate(values)))], from_zero=from_zero)
    svg = figure[figure.find("<svg") :]
    assert "nan" not in svg
    assert "inf" not in svg.replace("infinite", "")


def test_values_that_are_not_finite_are_counted() -> None:
    line = Line("a", [(1, 2.0), (2, math.nan), (3, math.inf), (4, 1.0)])
    assert "2 values not finite, not drawn" in draw_curves("loss", [line])


def test_nothing_to_draw_is_no_figure() -> None:
    assert draw_curves("loss", [Line("a", []), Line("b", [(1, math.nan)])]) == ""


def test_a_long_line_keeps_its_ends_and_its_extremes() -> None:
    points = [(step, math.sin(step) + (9 if step == 7777 else 0)) for step in range(20_000)]
    thin = thin_out(points)
    assert len(thin) <= MOST_POINTS + 2
    assert thin[0] == points[0]
    assert thin[-1] == points[-1]
    assert points[7777] in thin
    assert thin == sorted(thin)


def test_names_are_shown_and_not_obeyed() -> None:
    assert_harmless(draw_curves(HOSTILE, [Line(HOSTILE, [(1, 2.0), (2, 3.0)])]))
