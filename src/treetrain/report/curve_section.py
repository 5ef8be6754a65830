"""The part of a page about a training run: its curves, from the lines of `metrics.jsonl`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from treetrain.report.draw_curves import Line, draw_curves
from treetrain.report.markup import make_cards
from treetrain.report.run_metrics import RunCurves, read_curves
from treetrain.wording import say_duration, say_short

SPEEDS = "tokens per second"


def show_run(steps: Sequence[Mapping[str, Any]]) -> str:
    """Show what the run did, and its curves.

    Args:
        steps: lines of `metrics.jsonl`.

    Returns:
        Markup.
    """
    curves = read_curves(steps)
    return (
        "<h2>Run</h2>"
        + make_cards(_figures(curves))
        + '<div class="charts">'
        + "".join(
            # Two speeds are compared by their height; losses are not.
            draw_curves(name, lines, from_zero=name == SPEEDS)
            for name, lines in name_charts(curves)
        )
        + "</div>"
    )


def name_charts(curves: RunCurves) -> list[tuple[str, list[Line]]]:
    """Say which lines stand in which chart.

    Args:
        curves: figures of a run.

    Returns:
        Name and lines of each chart.
    """
    losses = [Line("loss of each step", curves.loss)]
    if curves.evaluation:
        losses.append(Line("evaluation", curves.evaluation))
    speeds = [Line("flat-equivalent", curves.flat_speed), Line("tree", curves.tree_speed)]
    return [("loss, nats", losses), (SPEEDS, speeds)]


def _figures(curves: RunCurves) -> list[tuple[str, str]]:
    figures = [("steps", f"{curves.steps:,}")]
    if curves.loss:
        figures += [
            ("first loss", f"{curves.loss[0][1]:.4g}"),
            ("last loss", f"{curves.loss[-1][1]:.4g}"),
        ]
    if curves.evaluation:
        figures.append(("last evaluation", f"{curves.evaluation[-1][1]:.4g}"))
    if curves.seconds and curves.tree_tokens:
        figures += [
            ("flat tokens / s", say_short(curves.flat_tokens / curves.seconds)),
            ("tree tokens / s", say_short(curves.tree_tokens / curves.seconds)),
            ("token reduction", f"{curves.flat_tokens / curves.tree_tokens:.2f}"),
            ("time of all steps", say_duration(curves.seconds)),
        ]
    return figures
