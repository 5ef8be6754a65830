"""The first stages of `treetrain demo`: its data, and their check."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from treetrain.data.rows import read_samples
from treetrain.data.sample import Sample
from treetrain.demo.plans import Plan
from treetrain.demo.practice import make_practice
from treetrain.demo.trajectories import make_rows, write_rows
from treetrain.verification.equivalence import Report
from treetrain.verification.verify import Progress, verify


def generate(plan: Plan, folder: Path, *, seed: int) -> Path:
    """Writes the data set.

    Args:
        plan: how much.
        folder: where; made if it is missing.
        seed: seed of the rows.

    Returns:
        The file of rows.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "greenhouse.jsonl"
    write_rows(make_rows(tasks=plan.tasks, trials=plan.trials, seed=seed), path)
    return path


def read_practice(plan: Plan, folder: Path, tokenizer: Any, *, seed: int) -> list[list[Sample]]:
    """Writes the rows that the model practises on, and reads them.

    Args:
        plan: how much.
        folder: where.
        tokenizer: the example's.
        seed: seed of the rows.

    Returns:
        The assistant steps of each errand as sequences.
    """
    path = folder / "practice.jsonl"
    write_rows(make_practice(plan.steps * plan.errands_per_step, seed=seed), path)
    return by_task(read_samples(path, tokenizer=tokenizer, expand="per_step"))


def by_task(samples: Sequence[Sample]) -> list[list[Sample]]:
    """Parts the samples by task.

    Args:
        samples: the sequences of the data set.

    Returns:
        One list per task, in order of first appearance.
    """
    tasks: dict[object, list[Sample]] = {}
    for sample in samples:
        tasks.setdefault(sample.group, []).append(sample)
    return list(tasks.values())


def cut(samples: Sequence[Sample], flat_tokens: int) -> list[Sample]:
    """Takes whole sequences from the front.

    Args:
        samples: the sequences.
        flat_tokens: most tokens to take.

    Returns:
        The longest beginning that fits, at least two sequences.
    """
    total, kept = 0, 0
    for sample in samples:
        total += len(sample)
        if total > flat_tokens:
            break
        kept += 1
    return list(samples[: max(2, kept)])


def check(model: PreTrainedModel, samples: Sequence[Sample], on_progress: Progress) -> Report:
    """Verifies that the tree's step equals the step over each sequence alone.

    Args:
        model: a plain model.
        samples: the sequences.
        on_progress: called with stage, parts done, parts in all.

    Returns:
        The report, equal or not.
    """
    return verify(model, samples, "token_mean", raise_on_difference=False, on_progress=on_progress)
