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
        compared_steps: steps that are taken both ways, after which parameters are compared.
        compared_tokens: flat tokens of each such step: whole sequences of the last task.
        compared_rate: learning rate of these steps.
        steps: training steps.
        errands_per_step: errands of each, drawn anew.
        held_out: errands that the model is judged by, before and after training.
        learning_rate: of AdamW.
        matrix_learning_rate: of Muon, which trains the layers' matrices; None: AdamW trains all.
        measured_tokens: flat tokens of the step that is timed: whole sequences of one task.
        rounds: timed rounds of each contestant.
    """

    tasks: int
    trials: int
    verified_tokens: int
    compared_steps: int
    compared_tokens: int
    compared_rate: float
    steps: int
    errands_per_step: int
    held_out: int
    learning_rate: float
    matrix_learning_rate: float | None
    measured_tokens: int
    rounds: int


PLANS = {
    "small": Plan(
        tasks=12,
        trials=4,
        verified_tokens=8_000,
        compared_steps=6,
        compared_tokens=4_000,
        compared_rate=0.1,
        steps=200,
        errands_per_step=8,
        held_out=50,
        learning_rate=6e-3,
        matrix_learning_rate=0.03,
        measured_tokens=20_000,
        rounds=3,
    ),
    "smollm2": Plan(
        tasks=4,
        trials=3,
        verified_tokens=3_000,
        compared_steps=2,
        compared_tokens=1_500,
        compared_rate=0.01,
        steps=30,
        errands_per_step=4,
        held_out=10,
        learning_rate=3e-4,
        matrix_learning_rate=None,
        measured_tokens=6_000,
        rounds=2,
    ),
}
