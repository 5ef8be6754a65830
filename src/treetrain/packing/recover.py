"""Values of a packed row as one tensor per sequence, in input order, with exact gradients."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from treetrain.errors import check_type
from treetrain.packing.batch import Batch
from treetrain.packing.targets import Targets, TargetTensors


def recover_sequences(
    values: Tensor, batch: Batch, *, per: Literal["token", "target"], fill: float = 0.0
) -> list[Tensor]:
    """Give each sequence its values of a packed row.

    A token or target that several sequences share is handed to each of them; in the backward pass
    their gradients are summed onto it.

    Args:
        values: per token: [T, ...] in packed order. Per target: [M, ...] in the order of
            `batch.targets`.
        batch: the batch the values belong to.
        per: what the rows of `values` are.
        fill: value, per target, of a sequence's tokens that no sequence trains; no gradient flows
            from it.

    Returns:
        One tensor per sequence in input order: [L, ...] per token; [max(L - 1, 0), ...] per target,
        its entry i for the token at place i + 1.

    Raises:
        ValueError: `values` has not one row per token or target, or `per` is unknown.

    Example:
        >>> from treetrain.packing.batch import pack
        >>> batch = pack([[1, 2, 3], [1, 2, 4, 5]])
        >>> [row.tolist() for row in recover_sequences(batch.packed.tokens[0], batch, per="token")]
        [[1, 2, 3], [1, 2, 4, 5]]
    """
    check_type("values", values, Tensor, "a tensor with one row per token or target")
    check_type("batch", batch, Batch, "a Batch from pack(samples)")
    if per == "token":
        _check_rows(values, batch.num_tokens, "token")
        flat = values.index_select(0, batch.flat_places)
        return list(torch.split(flat, batch.tree.sequence_lengths.tolist()))
    if per == "target":
        edges = recover_edges(values, batch.targets, batch.target_tensors, fill=fill)
        return split_edges(edges, batch.targets)
    raise ValueError(f"per must be 'token' or 'target', got {per!r}")


def recover_edges(
    values: Tensor, targets: Targets, tensors: TargetTensors, *, fill: float = 0.0
) -> Tensor:
    """Give each flat edge the value of its target.

    Args:
        values: one row per target, [M, ...].
        targets: the targets.
        tensors: the same targets on the device of `values`.
        fill: value of edges that have no target.

    Returns:
        One row per flat edge, [E, ...].
    """
    _check_rows(values, len(targets), "target")
    if (targets.edge_targets < 0).any():
        values = torch.cat([values, values.new_full((1, *values.shape[1:]), fill)])
    return values.index_select(0, tensors.edge_targets)


def split_edges(edges: Tensor, targets: Targets) -> list[Tensor]:
    """Cut flat edges into sequences.

    Args:
        edges: one row per flat edge, [E, ...].
        targets: the targets.

    Returns:
        One tensor per sequence in input order, [max(L - 1, 0), ...]; views of `edges`.
    """
    return list(torch.split(edges, targets.edge_lengths.tolist()))


def _check_rows(values: Tensor, rows: int, unit: str) -> None:
    if values.dim() == 0 or len(values) != rows:
        raise ValueError(
            f"values must have one row per {unit}, [{rows}, ...], got shape {tuple(values.shape)}"
        )
