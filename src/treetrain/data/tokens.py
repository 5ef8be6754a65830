"""Rows of token ids: masks, labels and weights become one weight per token."""

from __future__ import annotations

from typing import cast

import numpy as np

from treetrain.data.fields import field_error
from treetrain.data.formats import TokenRow
from treetrain.data.report import ReadReport
from treetrain.data.sample import MAX_TOKEN_ID, Sample

NOT_TRAINED = -100

MASKS = ("loss_mask", "completion_mask", "assistant_masks")
COLUMNS = (
    *MASKS,
    "attention_mask",
    "labels",
    "weights",
    "keys",
    "advantage",
    "logprobs",
    "reward",
)


def sample_of_ids(row: TokenRow, source: str, report: ReadReport) -> Sample:
    """Makes the sequence of one row of ids.

    The weight of a token is the product of the masks and weights that the row has; `labels` are a
    mask that is 0 where the label is -100. A row with none of them is trained in every token, and
    counted.

    Args:
        row: the checked row.
        source: file and line.
        report: counts, added to.

    Returns:
        The sequence.

    Raises:
        ValueError: a field has another length than `input_ids`, an id is out of range, or a label
            differs from its token.
    """  # noqa: DOC503 (field_error makes the errors)
    for name in COLUMNS:
        value = getattr(row, name)
        entries = len(cast(list[float], value)) if isinstance(value, list) else len(row.input_ids)
        if entries != len(row.input_ids):
            raise field_error(
                source, name, f"has {entries} entries for {len(row.input_ids)} tokens"
            )
    ids = np.array(row.input_ids, dtype=np.int64)
    kept = np.ones(len(ids), bool)
    if row.attention_mask is not None:
        kept = np.array(row.attention_mask, dtype=bool)
    wrong = np.flatnonzero(((ids < 0) | (ids > MAX_TOKEN_ID)) & kept)
    if len(wrong):
        raise field_error(
            source, f"input_ids[{wrong[0]}]", f"must be in 0 .. {MAX_TOKEN_ID}, got {ids[wrong[0]]}"
        )
    weights = np.ones(len(ids)) if row.weights is None else np.array(row.weights, dtype=np.float64)
    for name in MASKS:
        if getattr(row, name) is not None:
            weights = weights * np.array(getattr(row, name), dtype=np.float64)
    if row.labels is not None:
        labels = np.array(row.labels, dtype=np.int64)
        wrong = np.flatnonzero((labels != NOT_TRAINED) & (labels != ids) & kept)
        if len(wrong):
            raise field_error(
                source,
                f"labels[{wrong[0]}]",
                f"must be {NOT_TRAINED} or the token itself, {ids[wrong[0]]}, got "
                f"{labels[wrong[0]]}; labels are not to be shifted",
            )
        weights = weights * (labels != NOT_TRAINED)
    said = [row.labels, row.weights, *(getattr(row, name) for name in MASKS)]
    report.all_trained += all(value is None for value in said)
    return Sample(
        ids,
        weights,
        attention_mask=kept,
        keys=row.keys,
        group=row.group,
        trajectory=row.trajectory_id,
        advantage=row.advantage,
        logprobs=row.logprobs,
        reward=row.reward,
        source=source,
    )
