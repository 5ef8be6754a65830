"""How the terms of a loss are weighted against each other: reductions by name, none implied.

A reduction is one factor per sequence. With w the loss weights, l the losses of the targets, S the
sequences and J the trajectories of the whole accumulation window:

    path_mean        1/S sum over sequences of sum(w l)
    sequence_mean    1/S sum over sequences of sum(w l) / sum(w)
    token_mean       sum(w l) / sum(w) over the window
    trajectory_mean  1/J sum over trajectories of sum(w l) / sum(w) over the trajectory's sequences
    sum              sum(w l)
    a number         sum(w l) / number

A sequence or trajectory that trains nothing counts in S or J with a loss of 0, and a window that
trains nothing has a loss of 0.
"""

from __future__ import annotations

from numbers import Real
from typing import Literal

import numpy as np

from treetrain.errors import check_type
from treetrain.losses.window import LossWindow, WeightSum, measure_window, sequence_weight_sums
from treetrain.packing.batch import Batch
from treetrain.packing.targets import Floats
from treetrain.tree.prefix_tree import Ints

Reduction = Literal["path_mean", "sequence_mean", "token_mean", "trajectory_mean", "sum"] | float

#: Below the smallest normal number a quotient by it would overflow.
_SMALLEST = float(np.finfo(np.float64).tiny)
_LARGEST = float(np.finfo(np.float64).max)


def sequence_factors(batch: Batch, reduction: Reduction, window: LossWindow | None) -> Floats:
    """Compute what each sequence's weighted losses are multiplied by.

    Args:
        batch: the batch.
        reduction: the reduction, by name, or a number above 0 to divide by.
        window: sums over the accumulation window that the batch belongs to; None: the batch alone.

    Returns:
        One factor per sequence, [S] float64; 0 for a sequence that trains nothing.

    Raises:
        ValueError: the reduction is unknown; a sum of weights that it divides by is not above 0; or
            the batch is no part of the window.
        TypeError: the reduction is neither a name nor a number, or another argument is of another
            type.
    """
    check_type("batch", batch, Batch, "a Batch from pack(samples)")
    if window is not None:
        check_type("window", window, LossWindow, "None or a window from measure_window(batches)")
    if isinstance(reduction, bool) or not isinstance(reduction, str | Real):
        raise TypeError(
            f"reduction must be a name or a number, got {type(reduction).__name__}; see "
            f"treetrain.losses.reductions"
        )
    if window is None:
        window = measure_window([batch])
    elif window.sequences < batch.num_sequences:
        raise ValueError(
            f"window must include the batch, got a window of {window.sequences} sequences for a "
            f"batch of {batch.num_sequences}; measure_window takes all batches of a step"
        )
    totals, counts = sequence_weight_sums(batch)
    ones = np.ones(batch.num_sequences)
    if not isinstance(reduction, str):
        if not _SMALLEST <= reduction <= _LARGEST:
            raise ValueError(f"reduction must be a finite number above 0, got {reduction!s:.60}")
        return ones / float(reduction)
    if reduction == "sum":
        return ones
    if reduction == "path_mean":
        return ones / window.sequences
    if reduction == "token_mean":
        if window.weights.count:
            _check_sum(window.weights, "the window", reduction)
        return ones / window.weights.total if window.weights.count else 0 * ones
    if reduction == "sequence_mean":
        for index in np.flatnonzero((totals < _SMALLEST) & (counts > 0))[:1].tolist():
            weights = WeightSum(float(totals[index]), int(counts[index]))
            _check_sum(weights, name_sample(batch, index), reduction)
        return np.divide(1 / window.sequences, totals, out=0 * ones, where=counts > 0)
    if reduction == "trajectory_mean":
        sums = _trajectory_sums(batch, window, totals, counts)
        return np.divide(1 / window.num_trajectories, sums, out=0 * ones, where=counts > 0)
    raise ValueError(
        f"reduction must be 'path_mean', 'sequence_mean', 'token_mean', 'trajectory_mean', 'sum' "
        f"or a number, got {reduction!r}"
    )


def scale_edges(batch: Batch, edge_weights: Floats, factors: Floats) -> Floats:
    """Multiply flat edges by their sequences' factors.

    Args:
        batch: the batch.
        edge_weights: one number per flat edge, [E].
        factors: what `sequence_factors` gave, [S].

    Returns:
        The products, [E] float64.

    Raises:
        ValueError: all of them vanish in float64.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # for `Factors` to refuse
        products = edge_weights * np.repeat(factors, batch.targets.edge_lengths)
    if edge_weights.any() and not products.any():
        raise ValueError(
            "weights must not vanish once the reduction has scaled them, got "
            f"{np.abs(edge_weights).max():.3g} times {np.abs(factors).max():.3g} at most; scale "
            "them, or the number that the reduction divides by"
        )
    return products


def _trajectory_sums(batch: Batch, window: LossWindow, totals: Floats, counts: Ints) -> Floats:
    """Weights of the whole trajectory that each sequence belongs to."""
    sums = totals.copy()
    for index, name in enumerate(batch.trajectories):
        weights = WeightSum(float(totals[index]), int(counts[index]))
        if name is not None:
            if name not in window.trajectories:
                raise ValueError(
                    f"window must include the batch, got none of trajectory {name!r} of "
                    f"{name_sample(batch, index)}; measure_window takes all batches of a step"
                )
            weights = window.trajectories[name]
        if counts[index]:
            _check_sum(weights, f"the trajectory of {name_sample(batch, index)}", "trajectory_mean")
        sums[index] = weights.total
    return sums


def _check_sum(weights: WeightSum, owner: str, reduction: str) -> None:
    least = "more than 0" if weights.total <= 0 else f"at least {_SMALLEST:.2g}"
    if not weights.total >= _SMALLEST:
        raise ValueError(
            f"weights must sum to {least} for reduction {reduction!r}, got {weights.total} "
            f"over {weights.count} targets of {owner}; choose 'sum', 'path_mean' or a number to "
            f"divide by, and put signs into advantages"
        )


def name_sample(batch: Batch, index: int) -> str:
    """Name a sequence of a batch for messages.

    Args:
        batch: the batch.
        index: which of its sequences.

    Returns:
        Its place among the caller's samples and, where it has one, its source.
    """
    sample = batch.samples[index]
    name = f"samples[{batch.indices[index]}]"
    return name if sample.source in (None, "", name) else f"{name} ({sample.source})"
