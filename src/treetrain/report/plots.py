"""Curves of a run as PNG files, drawn by matplotlib where it is installed (extra `report`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from treetrain.report.curve_section import name_charts
from treetrain.report.run_metrics import read_curves

FILES = ("loss.png", "speed.png")
WAY_OUT = "matplotlib is not installed: pip install 'treetrain[report]'"


def write_plots(folder: Path, lines: Sequence[Mapping[str, Any]]) -> list[Path]:
    """Draw loss and speed over the steps.

    Args:
        folder: where `loss.png` and `speed.png` are written.
        lines: lines of `metrics.jsonl`.

    Returns:
        The files.

    Raises:
        ModuleNotFoundError: matplotlib is not installed; the message says how to install it.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(WAY_OUT, name=error.name) from error

    written: list[Path] = []
    for file, (name, curves) in zip(FILES, name_charts(read_curves(lines)), strict=True):
        # A figure of its own, without pyplot: no window, and no state that outlives the call.
        figure = Figure(figsize=(7, 4), layout="constrained")
        axes = figure.add_subplot()
        for line in curves:
            points = line.finite
            marker = "o" if len(points) == 1 else None
            axes.plot(
                [x for x, _ in points], [y for _, y in points], marker=marker, label=line.name
            )
        axes.set_xlabel("step")
        axes.set_ylabel(name)
        axes.grid(alpha=0.3)
        axes.legend()
        figure.savefig(folder / file, dpi=150)
        written.append(folder / file)
    return written
