"""The loop of supervised training on trees: order of the rows, optimiser steps, their figures.

Reading, the first check, files and progress are in `run`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from time import perf_counter

import numpy as np
import torch
from torch import nn

from treetrain.data.sample import Sample
from treetrain.losses.reductions import Reduction
from treetrain.losses.sft import sft_terms
from treetrain.losses.window import LossWindow, measure_window
from treetrain.packing.batch import Batch, group_samples
from treetrain.packing.budget import pack_batches
from treetrain.partitioning.modes import Mode
from treetrain.partitioning.step import add_gradients
from treetrain.training.config import OptimizerConfig, ScheduleConfig
from treetrain.training.schedule import learning_rate_factor
from treetrain.tree.partition import Partitions, partition_tree


@dataclass(frozen=True)
class StepMetrics:
    """Figures of one optimiser step; a line of `metrics.jsonl`.

    Attributes:
        step: counted from 1.
        epoch: passes over the data that are complete after the step.
        loss: loss of the step as its reduction defines it, nats.
        lr: learning rate of the step.
        grad_norm: norm of all gradients together, before clipping.
        sequences: sequences of the step.
        flat_tokens: tokens of these sequences.
        tree_tokens: tokens of their trees.
        partitions: forward passes on parts of trees that are larger than a row; 0 without such.
        normaliser: what the reduction divided by: sequences, trajectories, or a sum of weights.
        seconds: how long the step took.
        flat_tokens_per_second: flat tokens over seconds.
        tree_tokens_per_second: tree tokens over seconds.
    """

    step: int
    epoch: float
    loss: float
    lr: float
    grad_norm: float
    sequences: int
    flat_tokens: int
    tree_tokens: int
    partitions: int
    normaliser: float
    seconds: float
    flat_tokens_per_second: float
    tree_tokens_per_second: float


def pack_shuffled(
    samples: Sequence[Sample], *, max_tokens: int, seed: int | None, split_groups: bool
) -> list[Batch]:
    """Pack the data once, trees in random order.

    Args:
        samples: the sequences.
        max_tokens: tree tokens of one row.
        seed: seed of the order; None: the order of the samples.
        split_groups: whether a group larger than that is split, rather than left for partitions.

    Returns:
        The rows.
    """
    groups = group_samples(samples)
    if seed is not None:
        order = np.random.default_rng(seed).permutation(len(groups))
        groups = [groups[place] for place in order.tolist()]
    ordered = [samples[index] for group in groups for index in group.tolist()]
    return pack_batches(ordered, max_tokens=max_tokens, split_groups=split_groups)


def cut_large(batches: Sequence[Batch], max_tokens: int) -> dict[Batch, Partitions]:
    """Cut the trees that are larger than a row.

    Args:
        batches: the rows of an epoch.
        max_tokens: tree tokens of one partition.

    Returns:
        The partitions of each batch that exceeds the budget.
    """
    return {
        batch: partition_tree(batch.tree, max_tokens) for batch in batches if batch.exceeds_budget
    }


def order_windows(
    batches: Sequence[Batch], accumulation: int, *, seed: int | None
) -> Iterator[list[Batch]]:
    """Give the rows of one optimiser step after the other, without end.

    Args:
        batches: the rows of an epoch.
        accumulation: rows of one step; the last step of an epoch may have fewer, and is a whole
            step of its own.
        seed: seed of the order of the rows, another in each epoch; None: as they stand.

    Yields:
        The rows of a step.
    """
    epoch = 0
    while True:
        order = np.arange(len(batches))
        if seed is not None:
            order = np.random.default_rng((seed, epoch)).permutation(order)
        for start in range(0, len(batches), accumulation):
            yield [batches[place] for place in order[start : start + accumulation].tolist()]
        epoch += 1


def train_steps(
    model: nn.Module,
    batches: Sequence[Batch],
    reduction: Reduction,
    *,
    steps: int,
    optimizer: OptimizerConfig,
    schedule: ScheduleConfig,
    accumulation: int = 1,
    clip_norm: float | None = None,
    seed: int | None = None,
    partitions: Mapping[Batch, Partitions] | None = None,
    activations: Mode = "keep",
) -> Iterator[StepMetrics]:
    """Train with AdamW, one optimiser step for each value that is taken.

    Args:
        model: a prepared model, in the mode it shall have.
        batches: the rows of an epoch.
        reduction: reduction of the loss, over all rows of a step.
        steps: optimiser steps.
        optimizer: AdamW.
        schedule: learning rate over the steps.
        accumulation: rows of one step.
        clip_norm: largest norm of all gradients together; None: no limit.
        seed: seed of the order of the rows; None: as they stand.
        partitions: how the trees of some rows are cut; the others run undivided.
        activations: what partitions do with their activations, as in `partitioned_step`.

    Yields:
        What each step did.

    Raises:
        ValueError: loss or gradients are not finite, or parameters after the last step.
    """
    cuts = partitions or {}
    device = next(model.parameters()).device
    adamw = make_optimizer(model, optimizer)
    per_epoch = math.ceil(len(batches) / accumulation)
    windows = order_windows(batches, accumulation, seed=seed)
    for number, rows in enumerate(islice(windows, steps)):
        start = perf_counter()
        factor = learning_rate_factor(
            number,
            steps,
            schedule.kind,
            warmup_steps=schedule.warmup_steps,
            final_factor=schedule.final_factor,
        )
        for group in adamw.param_groups:
            group["lr"] = optimizer.lr * factor
        window = measure_window(rows)
        loss = 0.0
        for batch in rows:
            terms = sft_terms(batch.to(device), reduction, window=window)
            loss += add_gradients(model, terms, cuts.get(batch), modes=activations)
        norm = nn.utils.clip_grad_norm_(model.parameters(), clip_norm or math.inf)
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise ValueError(
                f"loss and gradients must be finite, got loss {loss:.6g} and norm "
                f"{float(norm):.6g} at step {number + 1}; lower optimizer.lr or set clip_norm"
            )
        adamw.step()
        adamw.zero_grad(set_to_none=True)
        if number + 1 == steps:
            _check_finite(model)
        seconds = perf_counter() - start
        flat = sum(int(batch.tree.sequence_lengths.sum()) for batch in rows)
        tree = sum(batch.num_tokens for batch in rows)
        yield StepMetrics(
            step=number + 1,
            epoch=round((number + 1) / per_epoch, 4),
            loss=loss,
            lr=optimizer.lr * factor,
            grad_norm=float(norm),
            sequences=window.sequences,
            flat_tokens=flat,
            tree_tokens=tree,
            partitions=sum(cuts[batch].num_partitions for batch in rows if batch in cuts),
            normaliser=find_normaliser(reduction, window),
            seconds=round(seconds, 6),
            flat_tokens_per_second=round(flat / seconds, 1),
            tree_tokens_per_second=round(tree / seconds, 1),
        )


def _check_finite(model: nn.Module) -> None:
    """What the loss of a next step would show; after the last step there is none."""
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            raise ValueError(
                f"parameters must be finite after the last step, got others in {name}; lower "
                "optimizer.lr or raise optimizer.eps"
            )


def make_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """Make AdamW for the trainable parameters; those of one dimension do not decay.

    Args:
        model: the model.
        config: its settings.

    Returns:
        The optimiser.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in trainable if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
    )


def find_normaliser(reduction: Reduction, window: LossWindow) -> float:
    """Find what a step's loss was divided by.

    Args:
        reduction: the reduction.
        window: sums over the step.

    Returns:
        Sequences for path_mean and sequence_mean (which also divides each sequence by its own
        weights), trajectories for trajectory_mean, the sum of weights for token_mean, 1 for sum, or
        the number given.
    """
    if not isinstance(reduction, str):
        return float(reduction)
    found = {
        "path_mean": window.sequences,
        "sequence_mean": window.sequences,
        "trajectory_mean": window.num_trajectories,
        "token_mean": window.weights.total,
        "sum": 1,
    }
    return float(found[reduction])
