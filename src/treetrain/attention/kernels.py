"""Attention of one rectangle, dense or causal, with the log-sum-exp handed out.

Two kernels of one shape: torch's fused CPU kernel, and plain matrix products for every other
device. The backward pass takes the output and log-sum-exp of the *whole* row, merged over all its
rectangles, which is what makes a rectangle's share of the gradient exact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

_cpu_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_cpu_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


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


def choose_kernel(device: torch.device) -> Kernel:
    """Choose the kernel of a device.

    Args:
        device: where queries, keys and values live.

    Returns:
        The fused kernel on CPU, matrix products elsewhere.
    """
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


def _scores(query: Tensor, key: Tensor, causal: bool, mask: Tensor | None, scale: float) -> Tensor:
    batch, heads, queries, size = query.shape
    grouped = query.reshape(batch, key.shape[1], -1, size)
    scores = (grouped @ key.transpose(-1, -2) * scale).view(batch, heads, queries, -1)
    if causal:
        index = torch.arange(queries, device=query.device)
        scores = scores.masked_fill(index[None, :] > index[:, None], float("-inf"))
    return scores if mask is None else scores + mask


def _matmul_forward(
    query: Tensor, key: Tensor, value: Tensor, causal: bool, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    scores = _scores(query, key, causal, mask, scale)
    logsumexp = scores.logsumexp(-1)
    weights = (scores - logsumexp[..., None]).exp_()
    grouped = weights.view(query.shape[0], key.shape[1], -1, key.shape[2])
    return (grouped @ value).view(*query.shape[:3], -1), logsumexp


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
) -> tuple[Tensor, Tensor, Tensor]:
    batch, kv_heads = key.shape[:2]
    scores = _scores(query, key, causal, mask, scale)
    weights = (scores - logsumexp[..., None]).exp_().view(batch, kv_heads, -1, key.shape[2])
    grouped_grad = grad.reshape(batch, kv_heads, -1, grad.shape[-1])
    share = (grad * output).sum(-1).view(batch, kv_heads, -1, 1)
    grad_scores = weights * (grouped_grad @ value.transpose(-1, -2) - share) * scale
    grad_query = (grad_scores @ key).view(query.shape)
    grouped_query = query.reshape(batch, kv_heads, -1, query.shape[-1])
    grad_key = grad_scores.transpose(-1, -2) @ grouped_query
    return grad_query, grad_key, weights.transpose(-1, -2) @ grouped_grad


FUSED_CPU = Kernel(_fused_forward, _fused_backward)
MATMUL = Kernel(_matmul_forward, _matmul_backward)
