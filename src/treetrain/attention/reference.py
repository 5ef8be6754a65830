"""The readable attention that defines the result: dense, any device, any dtype.

It builds a T x T visibility, ancestors beside it where a gateway leads to some, and serves tests,
short trees and layers that no other backend can compute; memory grows with T squared.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from treetrain.attention.once import differentiable_once
from treetrain.packing.gateway import LayerGateway
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
        `visible[q, k]`, bool [T, G + T]: packed indices of the row, and of the tree, whose first G
        tokens are the row's ancestors.
    """
    index = torch.arange(packed.subtree_ends.shape[0], device=packed.device)
    # Ancestors are one path from a root.
    key_depth = torch.cat([index[: packed.ancestors], packed.depth_positions[0]])[None, :]
    query_depth = packed.depth_positions[0][:, None]
    query, key = index[packed.ancestors :, None], index[None, :]
    visible = (key <= query) & (query < packed.subtree_ends[None, :])
    if window is not None:
        visible &= query_depth - key_depth < window
    if chunk is not None:
        visible &= query_depth // chunk == key_depth // chunk
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
    gateway: LayerGateway | None = None,
) -> Tensor:
    """Attend along paths; `treetrain.attention.api.tree_attention` says what is what."""
    groups = query.shape[1] // key.shape[1]
    wide = torch.promote_types(query.dtype, torch.float32)
    if gateway is not None:
        key, value = _Relay.apply(key, value, query, sinks, gateway, wide)
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


class _Relay(torch.autograd.Function):
    """Puts the ancestors' keys and values before a row's own, and gives their gradients back.

    The other inputs of a layer are handed over so that this is done wherever one of them requires a
    gradient: the ancestors' keys, which are not seen to, have one then.
    """

    @staticmethod
    def forward(
        ctx: Any,
        key: Tensor,
        value: Tensor,
        query: Tensor,
        sinks: Tensor | None,
        gateway: LayerGateway,
        wide: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        joined_key, joined_value = gateway.read(key, value)
        gateway.record(key, value)
        ctx.save_for_backward(key, value, query, sinks)  # read where second derivatives are refused
        ctx.gateway, ctx.dtype = gateway, key.dtype
        # In the wide dtype, so that what is given back is never rounded.
        return joined_key.to(wide), joined_value.to(wide)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        ancestors = ctx.gateway.num_ancestors
        ctx.gateway.give_back(0, *(grad[:, :, :ancestors] for grad in grads))
        own_key, own_value = (grad[:, :, ancestors:].clone() for grad in grads)
        ctx.gateway.add_given_back(own_key, own_value)
        return own_key.to(ctx.dtype), own_value.to(ctx.dtype), *[None] * 4
