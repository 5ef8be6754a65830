"""The stages of `treetrain demo`, each a function from one stage's result to the next."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from time import perf_counter

import torch
from transformers import PreTrainedModel

from treetrain.data.sample import Sample
from treetrain.demo.measure import Timing, separate_step, time_interleaved, tree_step
from treetrain.demo.plans import Plan
from treetrain.demo.trajectories import make_rows, write_rows
from treetrain.models.prepare import prepare
from treetrain.packing.batch import pack
from treetrain.tree.metrics import ModelShape, flop_bound
from treetrain.verification.equivalence import Report
from treetrain.verification.verify import Progress, verify


@dataclass(frozen=True)
class Step:
    """One training step.

    Attributes:
        loss: mean over trained tokens, nats.
        seconds: how long it took, packing and the optimizer included.
        tree_tokens: tokens computed.
        flat_tokens: tokens that separate sequences would have computed.
    """

    loss: float
    seconds: float
    tree_tokens: int
    flat_tokens: int


@dataclass(frozen=True)
class Measurement:
    """Step times of both ways.

    Attributes:
        tree: one step over the tree.
        separate: the same step over each sequence alone.
        sequences: sequences of the step.
        flat_tokens: tokens of all sequences.
        tree_tokens: tokens of their tree.
        bound: FLOP bound of the tree.
        loss_difference: between the losses of both ways, nats.
    """

    tree: Timing
    separate: Timing
    sequences: int
    flat_tokens: int
    tree_tokens: int
    bound: float
    loss_difference: float

    @property
    def speedup(self) -> float:
        """Median of separate over median of tree."""
        return self.separate.median / self.tree.median

    @property
    def bound_fraction(self) -> float:
        """Speed-up over the FLOP bound."""
        return self.speedup / self.bound


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


def train(model: PreTrainedModel, tasks: Sequence[Sequence[Sample]], plan: Plan) -> Iterator[Step]:
    """Trains with AdamW, one task a step, in turn.

    Args:
        model: a prepared model.
        tasks: the sequences of each task.
        plan: number of steps and learning rate; the rate falls to a tenth along a cosine.

    Yields:
        What each step did.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=plan.learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
        optimizer, plan.steps, eta_min=plan.learning_rate / 10
    )
    for samples in islice(cycle(tasks), plan.steps):
        start = perf_counter()
        loss = tree_step(model, samples)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        seconds = perf_counter() - start
        tree = pack(samples).tree
        yield Step(loss, seconds, tree.num_tokens, int(tree.sequence_lengths.sum()))


def measure(
    model: PreTrainedModel,
    samples: Sequence[Sample],
    plan: Plan,
    shape: ModelShape,
    on_progress: Callable[[int, int], None],
) -> Measurement:
    """Times one step both ways, in turn, and compares the losses.

    Args:
        model: a plain model; both contestants are copies of it.
        samples: the sequences of the step.
        plan: number of rounds.
        shape: sizes of the model.
        on_progress: called after each step with how many are done, and of how many.

    Returns:
        The times beside the bound.
    """
    plain, packed = copy.deepcopy(model), copy.deepcopy(model)
    prepare(packed)
    losses: dict[str, float] = {}

    def contestant(
        name: str, own: PreTrainedModel, step: Callable[[PreTrainedModel, Sequence[Sample]], float]
    ) -> Callable[[], None]:
        def run() -> None:
            losses[name] = step(own, samples)
            own.zero_grad()

        return run

    timings = time_interleaved(
        {
            "tree": contestant("tree", packed, tree_step),
            "separate": contestant("separate", plain, separate_step),
        },
        rounds=plan.rounds,
        on_progress=on_progress,
    )
    tree = pack(samples).tree
    return Measurement(
        timings["tree"],
        timings["separate"],
        sequences=tree.num_sequences,
        flat_tokens=int(tree.sequence_lengths.sum()),
        tree_tokens=tree.num_tokens,
        bound=flop_bound(tree, shape),
        loss_difference=abs(losses["tree"] - losses["separate"]),
    )


def as_lines(steps: Sequence[Step]) -> list[dict[str, float]]:
    """Puts training steps into the lines that a run writes.

    Args:
        steps: the steps, in order.

    Returns:
        One object for each, with the names of `metrics.jsonl`.
    """
    return [
        {
            "step": number,
            **vars(step),
            "flat_tokens_per_second": step.flat_tokens / step.seconds,
            "tree_tokens_per_second": step.tree_tokens / step.seconds,
        }
        for number, step in enumerate(steps, 1)
    ]


def as_figures(measurement: Measurement) -> dict[str, object]:
    """Puts a measurement into plain values.

    Args:
        measurement: the times.

    Returns:
        What the demo's JSON holds of it; times in seconds.
    """
    return {
        "sequences": measurement.sequences,
        "flat_tokens": measurement.flat_tokens,
        "tree_tokens": measurement.tree_tokens,
        "seconds_tree": list(measurement.tree.seconds),
        "seconds_separate": list(measurement.separate.seconds),
        "speedup": measurement.speedup,
        "flop_bound": measurement.bound,
        "bound_fraction": measurement.bound_fraction,
        "loss_difference": measurement.loss_difference,
    }
