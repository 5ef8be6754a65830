"""The lines of `metrics.jsonl`, read and turned into curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from treetrain.report.written import read_line

Points = list[tuple[float, float]]


@dataclass
class RunCurves:
    """Figures of a run over its steps.

    Attributes:
        steps: lines of optimiser steps.
        loss: (step, loss of the step, nats).
        evaluation: (step, loss on sequences that are not trained, nats).
        flat_speed: (step, flat-equivalent tokens per second).
        tree_speed: (step, tree tokens per second).
        flat_tokens: tokens of the sequences of all steps.
        tree_tokens: tokens computed in all steps.
        seconds: how long all steps took.
    """

    steps: int = 0
    loss: Points = field(default_factory=list)
    evaluation: Points = field(default_factory=list)
    flat_speed: Points = field(default_factory=list)
    tree_speed: Points = field(default_factory=list)
    flat_tokens: int = 0
    tree_tokens: int = 0
    seconds: float = 0.0


def read_metrics(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Read the lines of a run.

    Args:
        path: the file.

    Returns:
        One object for each line, and a note where a killed process left a last line without its
        end, which is left out.

    Raises:
        ValueError: a line is no JSON object with a step; file and line are named.
    """  # noqa: DOC502 (read_line raises)
    *whole, rest = path.read_bytes().split(b"\n")
    lines = [read_line(line, f"{path}:{number}") for number, line in enumerate(whole, 1)]
    return lines, [f"{path}:{len(lines) + 1}: 1 line without its end left out"] if rest else []


def read_curves(lines: Sequence[Mapping[str, Any]]) -> RunCurves:
    """Turn lines into curves.

    Args:
        lines: lines of `metrics.jsonl`; one may hold a step, an evaluation, or both.

    Returns:
        The curves.
    """
    curves = RunCurves()
    for line in lines:
        step = line["step"]
        for points, name in (
            (curves.loss, "loss"),
            (curves.evaluation, "evaluation_loss"),
            (curves.flat_speed, "flat_tokens_per_second"),
            (curves.tree_speed, "tree_tokens_per_second"),
        ):
            if line.get(name) is not None:
                points.append((step, float(line[name])))
        curves.steps += "loss" in line
        curves.flat_tokens += line.get("flat_tokens", 0)
        curves.tree_tokens += line.get("tree_tokens", 0)
        curves.seconds += line.get("seconds", 0.0)
    return curves
