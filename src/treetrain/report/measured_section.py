"""The part of a page about step times of both ways, beside the bound."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from treetrain.report.markup import make_cards, make_table


def show_measurement(measurement: Mapping[str, Any]) -> str:
    """Show what a step costs both ways.

    Args:
        measurement: seconds of each round, `seconds_tree` and `seconds_separate`, with `speedup`,
            `flop_bound` and `bound_fraction`.

    Returns:
        Markup.
    """
    rows = [
        (
            name,
            f"{median(seconds):.3g} s",
            f"{min(seconds):.3g} to {max(seconds):.3g} s",
            len(seconds),
        )
        for name in ("separate", "tree")
        for seconds in (measurement[f"seconds_{name}"],)
    ]
    return (
        "<h2>Measured</h2>"
        + make_cards(
            [
                ("speed-up", f"{measurement['speedup']:.2f}"),
                ("FLOP bound", f"{measurement['flop_bound']:.2f}"),
                ("of the bound", f"{measurement['bound_fraction']:.0%}"),
            ]
        )
        + make_table(
            f"one step over {measurement['sequences']:,} sequences, {measurement['flat_tokens']:,} "
            f"flat and {measurement['tree_tokens']:,} tree tokens, forward and backward, in turn",
            ("way", "median", "spread", "rounds"),
            rows,
        )
    )
