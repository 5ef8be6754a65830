"""Attention of one rectangle, dense or causal, with the log-sum-exp handed out.

Two kernels of one shape: torch's fused CPU kernel, and plain matrix products for every other device
and for capped scores, which no fused kernel hands out. The backward pass takes the output and
log-sum-exp of the *whole* row, merged over all its rectangles, which is what makes a rectangle's
share of the gradient exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

_cpu_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_cpu_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward

#: Scores of a head that matrix products hold at once, in (query, key) pairs.
SCORES_AT_ONCE = 1 << 20


class Kernel(NamedTuple):
    """Attention of queries [B, H, q, D] over keys and values [B, Hk, k, D].

    Both functions end with `causal` (only key <= query counts; q = k), `mask` (additive [q, k] in
    the query's dtype, or None; every row must see a key) and `scale` (factor of the scores).

    Attributes:
        forward: (query, key, value, causal, mask, scale) to output [B, H, q, D] and log-sum-exp
            [B, H, q] in nats.
        backward: (grad, query, key, value, output, logsumexp, causal, mask, scale), the last two
            tensors merged over all rectangles of a row, to this rectangle's gradients of query,
            key and value.
    """

    forward: Callable[..., tuple[Tensor, Tensor]]
    backward: Callable[..., tuple[Tensor, Tensor, Tensor]]


def choose_kernel(device: torch.device, softcap: float | None = None) -> Kernel:
    """Choose the kernel of a device and a layer.

    Args:
        device: where queries, keys and values live.
        softcap: scores become `softcap * tanh(score / softcap)`; None for none.

    Returns:
        The fused kernel on CPU, matrix products elsewhere and for capped scores.
    """
    if softcap is not None:
        return Kernel(
            partial(_matmul_forward, softcap=softcap), partial(_matmul_backward, softcap=softcap)
        )
    return FUSED_CPU if device.type == "cpu" else MATMUL


def _fused_forward(
    query: Tensor, key: Tensor, value: Tensor, causal: bool, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    # That it takes fewer key and value heads than query heads is undocumented; a test watches it.
    return _cpu_forward(query, key, value, 0.0, causal, attn_mask=mask, scale=scale)


def _fused_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    logsumexp: Tensor,
    causal: bool,
    mask: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    return _cpu_backward(
        grad, query, key, value, output, logsumexp, 0.0, causal, attn_mask=mask, scale=scale
    )


def _matmul_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    causal: bool,
    mask: Tensor | None,
    scale: float,
    *,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]:
    output = query.new_empty(*query.shape[:3], value.shape[-1])
    logsumexp = query.new_empty(query.shape[:3])
    for rows, keys in _blocks(query, key, causal):
        scores, _ = _score(
            query, key, rows, keys=keys, causal=causal, mask=mask, scale=scale, softcap=softcap
        )
        logsumexp[:, :, rows] = scores.logsumexp(-1)
        weights = _group(scores.sub_(logsumexp[:, :, rows, None]).exp_(), key)
        output[:, :, rows] = (weights @ value[:, :, keys]).view_as(output[:, :, rows])
    return output, logsumexp


def _matmul_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    logsumexp: Tensor,
    causal: bool,
    mask: Tensor | None,
    scale: float,
    *,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    grad_query = torch.empty_like(query)
    grad_key, grad_value = torch.zeros_like(key), torch.zeros_like(value)
    for rows, keys in _blocks(query, key, causal):
        scores, slope = _score(
            query, key, rows, keys=keys, causal=causal, mask=mask, scale=scale, softcap=softcap
        )
        weights = _group(scores.sub_(logsumexp[:, :, rows, None]).exp_(), key)
        part = _group(grad[:, :, rows], key)
        share = _group((grad[:, :, rows] * output[:, :, rows]).sum(-1, keepdim=True), key)
        grad_value[:, :, keys] += weights.transpose(-1, -2) @ part
        grad_scores = weights * (part @ value[:, :, keys].transpose(-1, -2) - share) * scale
        if slope is not None:
            grad_scores *= _group(slope, key)
        grad_query[:, :, rows] = (grad_scores @ key[:, :, keys]).view_as(grad_query[:, :, rows])
        grad_key[:, :, keys] += grad_scores.transpose(-1, -2) @ _group(query[:, :, rows], key)
    return grad_query, grad_key, grad_value


def _blocks(query: Tensor, key: Tensor, causal: bool) -> Iterator[tuple[slice, slice]]:
    """Cut queries into blocks, with the keys that each reads, so that few scores exist at once."""
    queries, keys = query.shape[2], key.shape[2]
    size = max(16, min(256, SCORES_AT_ONCE // max(keys, 1)))
    for first in range(0, queries, size):
        end = min(first + size, queries)
        yield slice(first, end), slice(0, end if causal else keys)


def _score(
    query: Tensor,
    key: Tensor,
    rows: slice,
    *,
    keys: slice,
    causal: bool,
    mask: Tensor | None,
    scale: float,
    softcap: float | None,
) -> tuple[Tensor, Tensor | None]:
    """Scores of a block, [B, H, rows, keys], and the slope of their cap; None without one."""
    grouped = _group(query[:, :, rows], key)
    scores = (grouped @ key[:, :, keys].transpose(-1, -2) * scale).view(
        query.shape[0], query.shape[1], rows.stop - rows.start, keys.stop
    )
    slope = None
    if softcap is not None:
        capped = torch.tanh(scores / softcap)
        slope = 1 - capped * capped
        scores = capped * softcap
    if causal:
        index = torch.arange(keys.stop, device=query.device)
        hidden = index[None, :] > index[rows, None]
        scores = scores.masked_fill(hidden, float("-inf"))
    return (scores if mask is None else scores + mask[rows, keys]), slope


def _group(values: Tensor, key: Tensor) -> Tensor:
    """Bring the query heads of one key head together, [B, Hk, heads x rows, ...]."""
    return values.reshape(values.shape[0], key.shape[1], -1, values.shape[-1])


FUSED_CPU = Kernel(_fused_forward, _fused_backward)
MATMUL = Kernel(_matmul_forward, _matmul_backward)
