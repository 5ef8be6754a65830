"""Times one training step both ways: the tree's, and each sequence alone through a plain model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from treetrain.data.sample import Sample
from treetrain.demo.plans import Plan
from treetrain.losses.sft import sft_loss
from treetrain.models.prepare import prepare
from treetrain.packing.batch import pack
from treetrain.tree.metrics import ModelShape, flop_bound


@dataclass(frozen=True)
class Timing:
    """Seconds of one contestant.

    Attributes:
        seconds: one figure per round, in order.
    """

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median of the rounds, seconds."""
        return median(self.seconds)

    @property
    def spread(self) -> tuple[float, float]:
        """Fastest and slowest round, seconds."""
        return min(self.seconds), max(self.seconds)


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


def tree_step(model: PreTrainedModel, samples: Sequence[Sample]) -> float:
    """Runs forward and backward over the tree, building and packing it included.

    Args:
        model: a prepared model; its gradients are added to.
        samples: the sequences.

    Returns:
        The loss, mean over trained tokens, nats.
    """
    loss = sft_loss(model, pack(samples), "token_mean")
    loss.backward()
    return float(loss.detach())


def separate_step(model: PreTrainedModel, samples: Sequence[Sample]) -> float:
    """Runs forward and backward over each sequence alone, one after the other.

    No sequence is padded, and logits are computed only where a token is trained, as in the tree.

    Args:
        model: a plain model; its gradients are added to.
        samples: the sequences.

    Returns:
        The loss, mean over trained tokens, nats.
    """
    trained = float(sum(sample.weights[1:].sum() for sample in samples))
    head = model.get_output_embeddings()
    assert head is not None
    total = 0.0
    for sample in samples:
        tokens = torch.from_numpy(sample.tokens.copy())
        weights = torch.from_numpy(sample.weights[1:].copy()).to(model.dtype)
        predictors = weights.nonzero().squeeze(1)
        hidden = model.base_model(tokens[None], use_cache=False)[0][0]
        losses = cross_entropy(head(hidden[predictors]), tokens[predictors + 1], reduction="none")
        loss = (losses * weights[predictors]).sum() / trained
        loss.backward()
        total += float(loss.detach())
    return total


def time_interleaved(
    contestants: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Timing]:
    """Times contestants in turn, so that a change of the machine meets all of them.

    Args:
        contestants: what to run, by name.
        rounds: how often each runs; a run before the first round is not counted.
        on_progress: called after each run with how many are done, and of how many.

    Returns:
        Their timings, by name.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    done = 0
    for number in range(rounds + 1):
        for name, step in contestants.items():
            start = perf_counter()
            step()
            if number:
                seconds[name].append(perf_counter() - start)
            done += 1
            on_progress(done, (rounds + 1) * len(contestants))
    return {name: Timing(tuple(values)) for name, values in seconds.items()}


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
