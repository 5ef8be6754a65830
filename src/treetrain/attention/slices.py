"""The rectangle backend: plain dense and causal attention over slices, merged by log-sum-exp.

Every kernel call of `plan` is attention of one rectangle. Outputs of a row's rectangles are merged
by their log-sum-exp; the backward pass hands each rectangle the merged output and log-sum-exp,
which makes it exact. Grouped heads are never expanded. Capped scores take matrix products
in place of a fused kernel. A partition's gateway is read anew in each pass and never saved, so that
what lives of a path of partitions grows with its tokens, not with their square.

Source: the merge and its backward pass are those of ring attention, Liu et al., arXiv:2310.01889.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from treetrain.attention.kernels import choose_kernel
from treetrain.attention.once import differentiable_once
from treetrain.attention.plan import Call, plan_calls
from treetrain.packing.gateway import LayerGateway
from treetrain.packing.packed_tree import PackedTree


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
    name = ("slices", window, chunk)
    if name not in packed.plans:
        calls = plan_calls(packed.tree, window=window, chunk=chunk, ancestors=packed.ancestors)
        packed.plans[name] = _Rectangles.from_calls(calls, packed.ancestors)
    rectangles = packed.plans[name]
    if gateway is not None:
        gateway = gateway.without_first(rectangles.hidden)
    return _SliceAttention.apply(query, key, value, sinks, rectangles, gateway, scale, softcap)


@dataclass(frozen=True, eq=False)
class _Rectangles:
    """A plan's calls, with their masks as additive tensors, made once per dtype and device.

    Attributes:
        calls: the calls, counted from the first ancestor that any query reads.
        hidden: ancestors before that one.
        ancestors: ancestors from that one on; they stand before the row.
        masks: the additive masks.
    """

    calls: list[Call]
    hidden: int
    ancestors: int
    masks: dict[tuple[int, torch.dtype, torch.device], Tensor]

    @classmethod
    def from_calls(cls, calls: list[Call], ancestors: int) -> _Rectangles:
        hidden = min([ancestors, *(call.keys[0][0] for call in calls)])
        return cls([_shift(call, -hidden) for call in calls], hidden, ancestors - hidden, {})

    def rows(self, call: Call) -> slice:
        """Where a call's queries stand in the row."""
        return slice(call.q_start - self.ancestors, call.q_end - self.ancestors)

    @torch.inference_mode(False)
    def mask(self, call: Call, like: Tensor) -> Tensor | None:
        if call.visible is None:
            return None
        # Equal masks are one array, so that its identity names it.
        name = (id(call.visible), like.dtype, like.device)
        if name not in self.masks:
            visible = torch.from_numpy(call.visible).to(like.device)
            hidden = torch.zeros(visible.shape, dtype=like.dtype, device=like.device)
            self.masks[name] = hidden.masked_fill_(~visible, float("-inf"))
        return self.masks[name]


def _shift(call: Call, tokens: int) -> Call:
    keys = tuple((start + tokens, end + tokens) for start, end in call.keys)
    return dataclasses.replace(
        call, q_start=call.q_start + tokens, q_end=call.q_end + tokens, keys=keys
    )


class _SliceAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sinks: Tensor | None,
        rectangles: _Rectangles,
        gateway: LayerGateway | None,
        scale: float,
        softcap: float | None,
    ) -> Tensor:
        kernel = choose_kernel(query.device, softcap)
        wide_query, wide_key, wide_value = _widen(query, *_read(gateway, key, value))
        if gateway is not None:
            gateway.record(key, value)
        batch, heads, tokens, size = wide_query.shape
        output = wide_query.new_empty(batch, tokens, heads, size).transpose(1, 2)
        logsumexp = wide_query.new_empty(batch, tokens, heads).transpose(1, 2)
        for call in rectangles.calls:
            rows = rectangles.rows(call)
            part, part_logsumexp = kernel.forward(
                wide_query[:, :, rows],
                _gather(wide_key, call),
                _gather(wide_value, call),
                call.causal,
                rectangles.mask(call, wide_query),
                scale,
            )
            if call.local:
                output[:, :, rows] = part
                logsumexp[:, :, rows] = part_logsumexp
            else:
                _merge(output[:, :, rows], logsumexp[:, :, rows], part, part_logsumexp)
        if sinks is not None:
            with_sinks = torch.logaddexp(logsumexp, sinks.to(logsumexp.dtype)[None, :, None])
            output *= (logsumexp - with_sinks).exp_()[..., None]
            logsumexp = with_sinks
        output = output[..., : value.shape[-1]].to(query.dtype)
        ctx.save_for_backward(query, key, value, sinks, output, logsumexp)
        ctx.rectangles, ctx.gateway = rectangles, gateway
        ctx.scale, ctx.softcap = scale, softcap
        return output

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, sinks, output, logsumexp = ctx.saved_tensors
        kernel = choose_kernel(query.device, ctx.softcap)
        wide_query, wide_key, wide_value = _widen(query, *_read(ctx.gateway, key, value))
        size = wide_query.shape[-1]
        wide_output = _pad(output.to(wide_query.dtype), size)
        grad = _pad(grads[0].to(wide_query.dtype), size)
        ancestors = ctx.rectangles.ancestors
        grad_query = torch.empty_like(wide_query)
        grad_key = torch.empty_like(wide_key[:, :, ancestors:])
        grad_value = torch.empty_like(wide_value[:, :, ancestors:])
        for call in ctx.rectangles.calls:
            rows = ctx.rectangles.rows(call)
            part_query, part_key, part_value = kernel.backward(
                grad[:, :, rows],
                wide_query[:, :, rows],
                _gather(wide_key, call),
                _gather(wide_value, call),
                wide_output[:, :, rows],
                logsumexp[:, :, rows],
                call.causal,
                ctx.rectangles.mask(call, wide_query),
                ctx.scale,
            )
            _accumulate(grad_query[:, :, rows], part_query, call.local)
            for start, place, first in _places(call, ancestors):
                parts = part_key[:, :, place], part_value[:, :, place]
                if start < ancestors:
                    share = parts[0][..., : key.shape[-1]], parts[1][..., : value.shape[-1]]
                    ctx.gateway.give_back(start, *share)
                    continue
                keys = slice(start - ancestors, start - ancestors + parts[0].shape[2])
                for total, part in zip((grad_key, grad_value), parts, strict=True):
                    _accumulate(total[:, :, keys], part, first)
        grad_sinks = None
        if sinks is not None:
            weight = (sinks.to(logsumexp.dtype)[None, :, None] - logsumexp).exp()
            grad_sinks = -(weight * (grad * wide_output).sum(-1)).sum((0, 2)).to(sinks.dtype)
        grad_key, grad_value = grad_key[..., : key.shape[-1]], grad_value[..., : value.shape[-1]]
        if ctx.gateway is not None:
            ctx.gateway.add_given_back(grad_key, grad_value)
        return (
            grad_query[..., : query.shape[-1]].to(query.dtype),
            grad_key.to(key.dtype),
            grad_value.to(value.dtype),
            grad_sinks,
            *[None] * 4,
        )


def _read(gateway: LayerGateway | None, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    return (key, value) if gateway is None else gateway.read(key, value)


def _widen(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Bring queries, keys and values to one head size and to float32 or wider.

    The kernels want one head size; half precision is computed in float32, so that merging
    rectangles adds no rounding of its own.
    """
    dtype = torch.promote_types(query.dtype, torch.float32)
    size = max(query.shape[-1], value.shape[-1])
    return _pad(query.to(dtype), size), _pad(key.to(dtype), size), _pad(value.to(dtype), size)


def _pad(tensor: Tensor, size: int) -> Tensor:
    missing = size - tensor.shape[-1]
    return torch.nn.functional.pad(tensor, (0, missing)) if missing else tensor


def _gather(tensor: Tensor, call: Call) -> Tensor:
    parts = [tensor[:, :, start:end] for start, end in call.keys]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)


def _places(call: Call, ancestors: int) -> Iterator[tuple[int, slice, bool]]:
    """Stretches of a call's keys: where each starts, which of the keys it is, and whether first.

    Local calls come first and in packed order, and keys before a tile belong to earlier tiles or
    to ancestors: a key is met first where its own tile's local call reads it.
    """
    first = 0
    for start, end in call.keys:
        own = min(max(start, call.q_start), end) if call.local else end
        row = min(max(start, ancestors), own)
        for begin, stop in ((start, row), (row, own), (own, end)):
            if begin < stop:
                yield begin, slice(first + begin - start, first + stop - start), begin >= own
        first += end - start


def _accumulate(total: Tensor, part: Tensor, first: bool) -> None:
    """Add a part to a total in place; the first one overwrites."""
    if first:
        total.copy_(part)
    else:
        total.add_(part)


def _merge(output: Tensor, logsumexp: Tensor, part: Tensor, part_logsumexp: Tensor) -> None:
    """Merge one rectangle's result into the rows' result, in place."""
    weight = torch.sigmoid(part_logsumexp - logsumexp)
    output.lerp_(part, weight[..., None])
    torch.logaddexp(logsumexp, part_logsumexp, out=logsumexp)
