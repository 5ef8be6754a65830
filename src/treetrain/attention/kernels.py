"""Dense and causal attention of one rectangle, forward and backward, with the log-sum-exp handed out.

Two kernels with one shape of call: torch's fused CPU kernel, and plain matrix products for every other
device. The backward pass takes the output and log-sum-exp of the *whole* row, merged over all
rectangles, which is what makes a rectangle's share of the gradient exact.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

_cpu_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_cpu_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class Kernel(Protocol):
    """Attention of queries [B, H, q, D] over keys and values [B, Hk, k, D]."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        causal: bool,
        mask: Tensor | None,
        scale: float,
    ) -> tuple[Tensor, Tensor]:
        """Attend; `mask` is additive [q, k] in the query's dtype, every row seeing at least one key.

        Args:
            query: [B, H, q, D].
            key: [B, Hk, k, D].
            value: [B, Hk, k, D].
            causal: whether only key <= query counts (q = k).
            mask: additive mask or None.
            scale: factor of the scores.

        Returns:
            Output [B, H, q, D] and log-sum-exp [B, H, q] in nats.
        """
        ...

    def backward(
        self,
        grad: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        output: Tensor,
        logsumexp: Tensor,
        *,
        causal: bool,
        mask: Tensor | None,
        scale: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute one rectangle's share of the gradients.

        Args:
            grad: gradient of the merged output, [B, H, q, D].
            query: [B, H, q, D].
            key: [B, Hk, k, D].
            value: [B, Hk, k, D].
            output: merged output, [B, H, q, D].
            logsumexp: merged log-sum-exp, [B, H, q].
            causal: as in `forward`.
            mask: as in `forward`.
            scale: as in `forward`.

        Returns:
            Gradients of query [B, H, q, D], key and value [B, Hk, k, D].
        """
        ...


class CpuKernel:
    """torch's fused attention for CPU tensors.

    It takes fewer key and value heads than query heads, which is undocumented; the tests probe it.
    """

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        causal: bool,
        mask: Tensor | None,
        scale: float,
    ) -> tuple[Tensor, Tensor]:  # noqa: D102
        return _cpu_forward(query, key, value, 0.0, causal, attn_mask=mask, scale=scale)

    def backward(
        self,
        grad: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        output: Tensor,
        logsumexp: Tensor,
        *,
        causal: bool,
        mask: Tensor | None,
        scale: float,
    ) -> tuple[Tensor, Tensor, Tensor]:  # noqa: D102
        return _cpu_backward(
            grad,
            query,
            key,
            value,
            output,
            logsumexp,
            0.0,
            causal,
            attn_mask=mask,
            scale=scale,
        )


class MatmulKernel:
    """Plain matrix products on any device; scores of one rectangle exist whole."""

    def _scores(
        self, query: Tensor, key: Tensor, *, causal: bool, mask: Tensor | None, scale: float
    ) -> Tensor:
        batch, heads, queries, size = query.shape
        grouped = query.reshape(batch, key.shape[1], -1, size)
        scores = (grouped @ key.transpose(-1, -2) * scale).view(batch, heads, queries, -1)
        if causal:
            index = torch.arange(queries, device=query.device)
            scores = scores.masked_fill(index[None, :] > index[:, None], float("-inf"))
        return scores if mask is None else scores + mask

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        causal: bool,
        mask: Tensor | None,
        scale: float,
    ) -> tuple[Tensor, Tensor]:  # noqa: D102
        scores = self._scores(query, key, causal=causal, mask=mask, scale=scale)
        logsumexp = scores.logsumexp(-1)
        weights = (scores - logsumexp[..., None]).exp_()
        grouped = weights.view(query.shape[0], key.shape[1], -1, key.shape[2])
        return (grouped @ value).view(*query.shape[:3], -1), logsumexp

    def backward(
        self,
        grad: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        output: Tensor,
        logsumexp: Tensor,
        *,
        causal: bool,
        mask: Tensor | None,
        scale: float,
    ) -> tuple[Tensor, Tensor, Tensor]:  # noqa: D102
        batch, kv_heads = key.shape[:2]
        scores = self._scores(query, key, causal=causal, mask=mask, scale=scale)
        weights = (scores - logsumexp[..., None]).exp_().view(batch, kv_heads, -1, key.shape[2])
        grouped_grad = grad.reshape(batch, kv_heads, -1, grad.shape[-1])
        share = (grad * output).sum(-1).view(batch, kv_heads, -1, 1)
        grad_scores = weights * (grouped_grad @ value.transpose(-1, -2) - share) * scale
        grad_query = (grad_scores @ key).view(query.shape)
        grouped_query = query.reshape(batch, kv_heads, -1, query.shape[-1])
        grad_key = grad_scores.transpose(-1, -2) @ grouped_query
        return grad_query, grad_key, weights.transpose(-1, -2) @ grouped_grad


def choose_kernel(device: torch.device) -> Kernel:
    """Choose the kernel of a device.

    Args:
        device: where queries, keys and values live.

    Returns:
        The fused kernel on CPU, matrix products elsewhere.
    """
    return CpuKernel() if device.type == "cpu" else MatmulKernel()
