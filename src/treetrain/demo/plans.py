"""How much `treetrain demo` does, for each of its models."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """How much the example does; one plan for each model.

    Attributes:
        tasks: tasks of the data set, one tree each.
        trials: trials of each task.
        verified_tokens: flat tokens that are verified: whole sequences of the first task.
        practice_tasks: tasks that the model practises on; 0: it is trained on the data set.
        practice_trials: trials of each of them.
        held_out: tasks that it acts on before and after training.
        steps: training steps.
        tasks_per_step: tasks of each step, in one tree.
        learning_rate: of AdamW.
        compared_steps: steps after which the parameters of both ways are compared.
        compared_tokens: flat tokens of each of these steps: whole sequences of one task.
        measured_tokens: flat tokens of the step that is timed: whole sequences of one task.
        rounds: timed rounds of each contestant.
    """

    tasks: int
    trials: int
    verified_tokens: int
    practice_tasks: int
    practice_trials: int
    held_out: int
    steps: int
    tasks_per_step: int
    learning_rate: float
    compared_steps: int
    compared_tokens: int
    measured_tokens: int
    rounds: int


PLANS = {
    "small": Plan(
        tasks=12,
        trials=4,
        verified_tokens=8_000,
        practice_tasks=400,
        practice_trials=1,
        held_out=20,
        steps=320,
        tasks_per_step=6,
        learning_rate=5e-3,
        compared_steps=6,
        compared_tokens=4_000,
        measured_tokens=20_000,
        rounds=3,
    ),
    "smollm2": Plan(
        tasks=4,
        trials=3,
        verified_tokens=3_000,
        practice_tasks=0,
        practice_trials=0,
        held_out=0,
        steps=6,
        tasks_per_step=1,
        learning_rate=1e-4,
        compared_steps=2,
        compared_tokens=2_000,
        measured_tokens=6_000,
        rounds=2,
    ),
}
