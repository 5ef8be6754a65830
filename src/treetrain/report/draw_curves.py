"""Curves of a run as SVG that stands in a page: few points, round ticks, a name for each line."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from treetrain.report.axes import find_ticks
from treetrain.report.safe_text import escape
from treetrain.wording import say_count, say_short

MOST_POINTS = 400
LARGEST = (
    1e30  # beyond it, differences overflow and no line can be read; NaN is not below it either
)
NEAREST = 1e-12  # values nearer each other than that, as a share, are drawn as a level line
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 480, 250, 54, 16, 14, 40


@dataclass(frozen=True)
class Line:
    """One line of a chart.

    Attributes:
        name: what it shows.
        points: (step, value), in order of steps.
    """

    name: str
    points: Sequence[tuple[float, float]]

    @property
    def finite(self) -> list[tuple[float, float]]:
        """Points that can be drawn."""
        return [point for point in self.points if all(abs(one) < LARGEST for one in point)]


def draw_curves(name: str, lines: Sequence[Line], *, from_zero: bool = False) -> str:
    """Draw lines over steps.

    Args:
        name: what the chart is called.
        lines: at most four lines; one without points is left out.
        from_zero: whether the scale of values begins at 0, where none is below.

    Returns:
        A figure with its caption, which says what each line ends with and how many values were no
        numbers; empty where there is nothing to draw.
    """
    shown = [(line, line.finite) for line in lines]
    points = [point for _, own in shown for point in own]
    if not points:
        return ""
    body = "".join(_svg(name, [own for _, own in shown if own], from_zero))
    legend = " ".join(
        f'<span class="key"><i class="swatch line{place}"></i>{escape(line.name)}: '
        f"{say_short(own[-1][1])} at the last step</span>"
        for place, (line, own) in enumerate((line, own) for line, own in shown if own)
    )
    lost = sum(len(line.points) - len(own) for line, own in shown)
    note = f' <span class="key">{say_count(lost, "value")} not finite, not drawn</span>'
    return (
        f"<figure><figcaption><b>{escape(name)}</b> {legend}{note if lost else ''}</figcaption>"
        f'<div class="scroll">{body}</div></figure>'
    )


def thin_out(points: Sequence[tuple[float, float]], most: int = MOST_POINTS) -> list[tuple]:
    """Keep the ends, and the lowest and highest point of each stretch of a long line.

    Args:
        points: the line.
        most: about how many points to keep.

    Returns:
        Points of the line, in order.
    """
    if len(points) <= most:
        return list(points)
    stretch = math.ceil(2 * len(points) / most)
    kept: set[int] = {0, len(points) - 1}
    for start in range(0, len(points), stretch):
        own = range(start, min(start + stretch, len(points)))
        kept |= {min(own, key=lambda i: points[i][1]), max(own, key=lambda i: points[i][1])}
    return [points[index] for index in sorted(kept)]


def _svg(
    name: str,
    lines: Sequence[Sequence[tuple[float, float]]],
    from_zero: bool,
) -> Iterator[str]:
    points = [point for line in lines for point in line]
    x_low, x_high = _bounds([x for x, _ in points])
    y_low, y_high = _bounds([y for _, y in points] + ([0.0] if from_zero else []))
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def across(x: float) -> float:
        return LEFT + (x - x_low) / (x_high - x_low) * (right - LEFT)

    def down(y: float) -> float:
        return bottom - (y - y_low) / (y_high - y_low) * (bottom - TOP)

    yield f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
    yield f"<title>{escape(name)}</title>"
    for tick in find_ticks(y_low, y_high):
        y = down(tick)
        yield f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="tick end" x="{LEFT - 6}" y="{y + 4:.1f}">{say_short(tick)}</text>'
    for tick in find_ticks(x_low, x_high, whole=True):
        yield f'<text class="tick mid" x="{across(tick):.1f}" y="{bottom + 17}">'
        yield f"{say_short(tick)}</text>"
    yield f'<text class="tick end" x="{right}" y="{HEIGHT - 4}">step</text>'
    for place, line in enumerate(lines):
        drawn = [(across(x), down(y)) for x, y in thin_out(line)]
        if len(drawn) == 1:
            ((x, y),) = drawn
            yield f'<circle class="point line{place}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>'
            continue
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in drawn)
        yield f'<path class="curve line{place}" d="M{path}"/>'
    yield "</svg>"


def _bounds(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    if high - low <= NEAREST * max(abs(low), abs(high)):
        room = abs(low) * 0.1 or 1.0
        return low - room, high + room
    return low, high
