"""The learning rate over a run."""

from __future__ import annotations

import math
from typing import Literal

Kind = Literal["constant", "linear", "cosine"]


def learning_rate_factor(
    step: int, steps: int, kind: Kind, *, warmup_steps: int = 0, final_factor: float = 0.0
) -> float:
    """Compute the part of the highest learning rate that a step takes.

    Args:
        step: the step, counted from 0.
        steps: steps of the whole run, warm-up included.
        kind: what follows the warm-up.
        warmup_steps: steps over which the factor rises in a straight line; the first of them is not
            0, and the step after them has 1.
        final_factor: factor of the last step, for "linear" and "cosine".

    Returns:
        The factor, 0 .. 1.

    Example:
        >>> [round(learning_rate_factor(n, 5, "linear", warmup_steps=1), 2) for n in range(5)]
        [0.5, 1.0, 0.67, 0.33, 0.0]
    """
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    if kind == "constant":
        return 1.0
    progress = min(1.0, (step - warmup_steps) / max(1, steps - 1 - warmup_steps))
    fall = progress if kind == "linear" else (1 - math.cos(math.pi * progress)) / 2
    return 1.0 - (1.0 - final_factor) * fall
