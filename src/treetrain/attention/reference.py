"""The readable attention that defines the result: dense, any device, any dtype.

It builds a T x T visibility and therefore serves tests, short trees and layers that no other
backend can compute; memory grows with T squared.
"""

from __future__ import annotations

import torch
from torch import Tensor

from treetrain.packing.packed_tree import PackedTree


def find_visibility(
    packed: PackedTree, *, window: int | None = None, chunk: int | None = None
) -> Tensor:
    """Compute which packed token may read which.

    Args:
        packed: the packed tree.
        window: number of depth positions a query reads back, itself included; None for all.
        chunk: size of the blocks of depth positions that do not read each other; None for one
            block.

    Returns:
        `visible[q, k]`, bool [T, T], packed indices.
    """
    index = torch.arange(packed.subtree_ends.shape[0], device=packed.subtree_ends.device)
    depth = packed.depth_positions[0]
    query, key = index[:, None], index[None, :]
    visible = (key <= query) & (query < packed.subtree_ends[None, :])
    if window is not None:
        visible &= depth[:, None] - depth[None, :] < window
    if chunk is not None:
        visible &= depth[:, None] // chunk == depth[None, :] // chunk
    return visible


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    packed: PackedTree,
    *,
    scale: float,
    window: int | None = None,
    chunk: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attend along paths; `treetrain.attention.api.tree_attention` says what is what."""
    groups = query.shape[1] // key.shape[1]
    wide = torch.promote_types(query.dtype, torch.float32)
    key = key.repeat_interleave(groups, dim=1).to(wide)
    value = value.repeat_interleave(groups, dim=1).to(wide)
    scores = query.to(wide) @ key.transpose(-1, -2) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    visible = find_visibility(packed, window=window, chunk=chunk)
    scores = scores.masked_fill(~visible, float("-inf"))
    if sinks is not None:
        sink_scores = sinks.to(wide)[None, :, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, sink_scores], dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., : key.shape[2]]
    return (weights @ value).to(query.dtype)
