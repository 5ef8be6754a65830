"""Draws the memory of a partitioned step against capacity, as an SVG without dependencies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 640, 360, 64, 48, 24, 150
COLOURS = {"keep": "#1f77b4", "recompute": "#d9660f"}


def draw_memory(results: Sequence[Mapping[str, float | str]], undivided: float) -> str:
    """Draw measured memory as points, estimates as lines, and the undivided step as a dashed line.

    Args:
        results: figures of runs at several capacities.
        undivided: bytes of the undivided step.

    Returns:
        The SVG.
    """
    capacities = sorted({float(one["capacity"]) for one in results})
    low, high = math.log2(capacities[0]), math.log2(capacities[-1])
    highest = max(undivided, *(float(one["measured_bytes"]) for one in results)) * 1.05

    def x(capacity: float) -> float:
        return LEFT + (math.log2(capacity) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(size: float) -> float:
        return HEIGHT - BOTTOM - size / highest * (HEIGHT - BOTTOM - TOP)

    parts = [_axes(capacities, highest, x, y)]
    line = y(undivided)
    parts.append(
        f'<path d="M{LEFT} {line:.1f}H{WIDTH - RIGHT}" stroke="#777" stroke-dasharray="6 4"/>'
        + _text(WIDTH - RIGHT + 8, line + 4, "undivided (estimate)")
    )
    for place, (mode, colour) in enumerate(COLOURS.items()):
        own = sorted((one for one in results if one["mode"] == mode), key=_capacity)
        path = "L".join(f"{x(_capacity(o)):.1f} {y(float(o['estimated_bytes'])):.1f}" for o in own)
        parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        parts += [
            f'<circle cx="{x(_capacity(o)):.1f}" cy="{y(float(o["measured_bytes"])):.1f}" r="4" '
            f'fill="{colour}"/>'
            for o in own
        ]
        height = HEIGHT - BOTTOM - 60 + 22 * place
        parts.append(
            f'<circle cx="{WIDTH - RIGHT + 14}" cy="{height - 4}" r="4" fill="{colour}"/>'
            + _text(WIDTH - RIGHT + 24, height, mode)
        )
    parts.append(
        _text(WIDTH - RIGHT + 8, HEIGHT - BOTTOM - 12, "points measured, lines estimated", 9)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" role="img" aria-label="memory against capacity">'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>' + "".join(parts) + "</svg>\n"
    )


def _capacity(one: Mapping[str, float | str]) -> float:
    return float(one["capacity"])


def _axes(capacities, highest, x, y) -> str:
    parts = [
        f'<path d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}" fill="none" stroke="#333"/>'
    ]
    parts += [_text(x(c) - 14, HEIGHT - BOTTOM + 18, f"{c:.0f}") for c in capacities]
    step = 2 ** math.floor(math.log2(highest / 4))
    for number in range(int(highest / step) + 1):
        size = number * step
        parts.append(
            f'<path d="M{LEFT} {y(size):.1f}h{WIDTH - RIGHT - LEFT}" stroke="#ddd"/>'
            + _text(8, y(size) + 4, f"{size / 2**30:.2f} GiB")
        )
    parts.append(_text(LEFT + 120, HEIGHT - 8, "capacity of a partition, tokens"))
    return "".join(parts)


def _text(left: float, base: float, text: str, size: int = 11) -> str:
    return f'<text x="{left:.0f}" y="{base:.0f}" font-size="{size}" fill="#222">{text}</text>'
