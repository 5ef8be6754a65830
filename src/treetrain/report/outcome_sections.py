"""The parts of a page about where training leads: the same parameters both ways, and tasks done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from treetrain.report.markup import make_cards, make_table


def show_agreement(agreement: Mapping[str, Any]) -> str:
    """Show how far apart parameters are after the same steps on the tree and each sequence alone.

    Args:
        agreement: `steps`, `sequences`, `parameters`, `largest_difference` and `largest_change`.

    Returns:
        Markup.
    """
    return (
        "<h2>Same parameters both ways</h2>"
        + make_cards(
            [
                ("largest difference", f"{agreement['largest_difference']:.1e}"),
                ("largest change by training", f"{agreement['largest_change']:.2g}"),
            ]
        )
        + f'<p class="soft">of {agreement["parameters"]:,} parameters after '
        f"{agreement['steps']:,} steps of SGD over {agreement['sequences']:,} sequences, from the "
        "same weights, on the tree and on each sequence alone</p>"
    )


def show_attempts(attempts: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Show which share of tasks a model does by acting, before and after training.

    Args:
        attempts: what became of each task, `before` and `after`: `solved`, `calls`, `ended`.

    Returns:
        Markup.
    """
    shares = {
        name: sum(attempt["solved"] for attempt in own) / len(own) for name, own in attempts.items()
    }
    ends = sorted({attempt["ended"] for own in attempts.values() for attempt in own})
    rows = []
    for name, own in attempts.items():
        ended = Counter(attempt["ended"] for attempt in own)
        solved = sum(attempt["solved"] for attempt in own)
        calls = sum(attempt["calls"] for attempt in own)
        rows.append((f"{name} training", f"{solved} of {len(own)}", calls, *map(ended.get, ends)))
    return (
        "<h2>Held-out tasks</h2>"
        + make_cards((f"done {name} training", f"{share:.0%}") for name, share in shares.items())
        + make_table(
            "held-out tasks, done by calling the tools; the state that the model leaves behind "
            "decides",
            ("model", "done", "tools called", *(f"ended: {end}" for end in ends)),
            [[0 if cell is None else cell for cell in row] for row in rows],
        )
    )
