"""Refuses, before the first step, rows that a run would refuse when it comes to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import numpy as np

from treetrain.errors import UnsupportedModelError
from treetrain.losses.policy_inputs import read_advantages, read_old_logprobs
from treetrain.losses.reductions import Reduction, sequence_factors
from treetrain.losses.window import measure_window
from treetrain.models.prepared import PreparedModel
from treetrain.packing.batch import Batch, pack
from treetrain.packing.packed_tree import PackedTree
from treetrain.packing.parts import cut_batch
from treetrain.packing.targets import Floats
from treetrain.training.config import TrainConfig
from treetrain.training.rows import EpochRows, order_windows
from treetrain.training.settings import LossConfig

#: Steps whose weights are looked at; in a longer run the same rows have met often by then.
MOST_STEPS = 10_000


def check_rows(
    prepared: PreparedModel,
    rows: EpochRows,
    evaluated: EpochRows,
    config: TrainConfig,
    *,
    steps: int,
) -> None:
    """Refuse rows that a run cannot train on or evaluate.

    Args:
        prepared: the model's handle.
        rows: the rows of an epoch.
        evaluated: the rows that are evaluated.
        config: the run.
        steps: its optimiser steps.
    """
    check_policy_inputs(rows, config.loss)
    for part in (rows, evaluated):
        check_served(prepared, part)
    seed = config.seed if config.data.shuffle else None
    windows = order_windows(rows.batches, config.accumulation, seed=seed)
    check_weights(rows, islice(windows, min(steps, MOST_STEPS)), config.reduction)
    # An evaluation is one window of all its rows.
    check_weights(evaluated, [evaluated.batches], config.reduction)


def check_served(prepared: PreparedModel, rows: EpochRows) -> None:
    """Refuse rows that the model does not serve: ids it has not, paths that are too long for it.

    Args:
        prepared: the model's handle.
        rows: the rows of an epoch, or those that are evaluated.

    Raises:
        ValueError: there is one; where one sequence is the reason, its place is named.
        UnsupportedModelError: the model does not compute a row exactly.
    """  # noqa: DOC502, DOC503 (both are raised as the error that came)
    for batch in rows.batches:
        for packed in _packed_rows(batch, rows):
            try:
                prepared.check_row(packed)
            except (ValueError, UnsupportedModelError) as error:
                raise type(error)(f"{_find_offender(prepared, batch)}{error}") from error


def check_policy_inputs(rows: EpochRows, loss: LossConfig) -> None:
    """Refuse rows without the advantages or log-probabilities that a loss takes from them.

    Args:
        rows: the rows of an epoch.
        loss: the loss.

    Raises:
        ValueError: a sequence that is trained has none, or others than such a loss takes; its
            place is named.
    """  # noqa: DOC502 (the readers raise)
    if loss.name == "sft":
        return
    for batch in rows.batches:
        trained = np.flatnonzero(batch.targets.edge_weights)
        read_advantages(batch, None, trained)
        if loss.old_logprobs == "recorded":
            read_old_logprobs(batch, "recorded", trained)


def check_weights(
    rows: EpochRows, windows: Iterable[Sequence[Batch]], reduction: Reduction
) -> None:
    """Refuse weights that a reduction cannot divide by the sum of.

    Where none is negative and no sum is too large for a float, it can.

    Args:
        rows: the rows of an epoch.
        windows: the rows of each step; looked at only where there are such weights.
        reduction: the reduction.

    Raises:
        ValueError: there is a step of such weights.
    """  # noqa: DOC502 (sequence_factors raises)
    doubtful = {batch for batch in rows.batches if _is_doubtful(batch.targets.edge_weights)}
    if not doubtful:
        return
    for step in windows:
        if not doubtful.isdisjoint(step):
            window = measure_window(step)
            for batch in step:
                sequence_factors(batch, reduction, window)


def _is_doubtful(weights: Floats) -> bool:
    with np.errstate(over="ignore"):
        return bool((weights < 0).any()) or not np.isfinite(weights.sum())


def _packed_rows(batch: Batch, rows: EpochRows) -> Iterator[PackedTree]:
    partitions = rows.partitions.get(batch)
    if partitions is None:
        yield batch.packed
    else:
        yield from (part.packed for part in cut_batch(batch, partitions))


def _find_offender(prepared: PreparedModel, batch: Batch) -> str:
    """Place of the first sequence that is refused alone, or of the row's first one."""
    for sample in batch.samples:
        try:
            prepared.check_row(pack([sample]).packed)
        except (ValueError, UnsupportedModelError):
            return f"{sample.source}: " if sample.source else ""
    first = batch.samples[0].source
    return f"the row of {first} and what is packed with it: " if first else ""
