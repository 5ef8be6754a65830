"""What a loss is divided by: counts and weight sums over a whole accumulation window.

A window is every batch whose gradients one optimiser step sums. Measuring needs no model, so the
sums are known before the first batch is computed.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from treetrain.errors import check_type
from treetrain.packing.batch import Batch
from treetrain.packing.targets import Floats
from treetrain.tree.prefix_tree import Ints


@dataclass(frozen=True)
class WeightSum:
    """Sum of loss weights, and how many of them are not 0.

    Raises:
        ValueError: the sum is not finite.
    """

    total: float = 0.0
    count: int = 0

    def __post_init__(self) -> None:
        if not math.isfinite(self.total):
            raise ValueError(
                f"weights must have a finite sum, got {self.total} over {self.count} targets; "
                "scale them down"
            )

    def __add__(self, other: WeightSum) -> WeightSum:
        return WeightSum(self.total + other.total, self.count + other.count)


@dataclass(frozen=True)
class LossWindow:
    """Sums over the batches of one optimiser step. Windows add, also those of several processes.

    Attributes:
        sequences: number of sequences, those without targets included.
        weights: sum of the weights of all flat edges.
        unnamed: number of sequences that name no trajectory; each is its own.
        trajectories: sum of weights of each named trajectory, by (group, trajectory).
        tokens: number of flat tokens, trained or not; what losses of routers are means over.
    """

    sequences: int = 0
    weights: WeightSum = WeightSum()
    unnamed: int = 0
    trajectories: Mapping[Hashable, WeightSum] = field(default_factory=dict[Hashable, WeightSum])
    tokens: int = 0

    @property
    def num_trajectories(self) -> int:
        """Number of trajectories, those without targets included."""
        return self.unnamed + len(self.trajectories)

    def __add__(self, other: LossWindow) -> LossWindow:
        merged = dict(self.trajectories)
        for name, weights in other.trajectories.items():
            merged[name] = merged.get(name, WeightSum()) + weights
        return LossWindow(
            sequences=self.sequences + other.sequences,
            weights=self.weights + other.weights,
            unnamed=self.unnamed + other.unnamed,
            trajectories=merged,
            tokens=self.tokens + other.tokens,
        )


def measure_window(batches: Iterable[Batch]) -> LossWindow:
    """Measure an accumulation window.

    Args:
        batches: every batch of the window.

    Returns:
        Its sums, to be handed to the loss of each of the batches.

    Example:
        >>> from treetrain.data.sample import Sample
        >>> from treetrain.packing.batch import pack
        >>> rows = [Sample([1, 2, 3], trajectory="x"), Sample([1, 2], trajectory="x"), [4, 5]]
        >>> window = measure_window([pack(rows[:2]), pack(rows[2:])])
        >>> window.sequences, window.weights.total, window.num_trajectories
        (3, 4.0, 2)
    """
    check_type("batches", batches, Iterable, "a list of batches; put a single one into a list")
    window = LossWindow()
    for place, batch in enumerate(batches):
        check_type(f"batches[{place}]", batch, Batch, "a Batch from pack(samples)")
        totals, counts = sequence_weight_sums(batch)
        with np.errstate(over="ignore"):  # refused by `WeightSum`
            total = float(totals.sum())
        named: dict[Hashable, WeightSum] = {}
        for index, name in enumerate(batch.trajectories):
            if name is not None:
                weights = WeightSum(float(totals[index]), int(counts[index]))
                named[name] = named.get(name, WeightSum()) + weights
        window += LossWindow(
            sequences=batch.num_sequences,
            weights=WeightSum(total, int(counts.sum())),
            unnamed=sum(name is None for name in batch.trajectories),
            trajectories=named,
            tokens=int(batch.tree.sequence_lengths.sum()),
        )
    return window


def sequence_weight_sums(batch: Batch) -> tuple[Floats, Ints]:
    """Sum the loss weights of each sequence.

    Args:
        batch: the batch.

    Returns:
        Sum of the weights of each sequence's edges, [S] float64, and how many are not 0, [S]
        int64.

    Raises:
        ValueError: a sum is not finite; names the sample.
    """
    targets = batch.targets
    owners = np.repeat(np.arange(batch.num_sequences), targets.edge_lengths)
    weights = targets.edge_weights
    totals = np.bincount(owners, weights=weights, minlength=batch.num_sequences)
    counts = np.bincount(owners, weights=weights != 0, minlength=batch.num_sequences)
    for index in np.flatnonzero(~np.isfinite(totals))[:1].tolist():
        source = batch.samples[index].source
        raise ValueError(
            f"weights must have a finite sum, got {totals[index]} over samples"
            f"[{batch.indices[index]}]{f' ({source})' if source else ''}; scale them down"
        )
    return totals.astype(np.float64), counts.astype(np.int64)
