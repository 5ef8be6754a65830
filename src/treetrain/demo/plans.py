"""How much the example does with each of its models."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """How much the example does; one plan for each model.

    Attributes:
        tasks: tasks of the data set, one tree each.
        trials: trials of each task.
        verified_tokens: flat tokens that are verified: whole sequences of the first task.
        steps: training steps, each over one task.
        learning_rate: of AdamW.
        measured_tokens: flat tokens of the step that is timed: whole sequences of one task.
        rounds: timed rounds of each contestant.
    """

    tasks: int
    trials: int
    verified_tokens: int
    steps: int
    learning_rate: float
    measured_tokens: int
    rounds: int


PLANS = {
    "small": Plan(
        tasks=12,
        trials=4,
        verified_tokens=8_000,
        steps=72,
        learning_rate=3e-3,
        measured_tokens=20_000,
        rounds=3,
    ),
    "smollm2": Plan(
        tasks=4,
        trials=3,
        verified_tokens=3_000,
        steps=6,
        learning_rate=1e-4,
        measured_tokens=6_000,
        rounds=2,
    ),
}
