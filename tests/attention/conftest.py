from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

Inputs = Callable[..., tuple[Tensor, Tensor, Tensor]]


@pytest.fixture
def make_inputs() -> Inputs:
    """Random queries, keys and values that require gradients."""

    def make(
        tokens: int,
        *,
        heads: int = 4,
        kv_heads: int = 2,
        size: int = 8,
        value_size: int | None = None,
        dtype: torch.dtype = torch.float64,
        seed: int = 0,
    ) -> tuple[Tensor, Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        shapes = [(heads, size), (kv_heads, size), (kv_heads, value_size or size)]
        query, key, value = (
            torch.randn(1, count, tokens, width, generator=generator, dtype=torch.float64)
            .to(dtype)
            .requires_grad_()
            for count, width in shapes
        )
        return query, key, value

    return make
