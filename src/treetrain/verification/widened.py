"""Float64 that is float64 throughout: transformers computes norms and rotary angles in float32.

In such a model two right float64 gradients differ by 1e-7. Where requests for float32 are answered
with float64 they differ by 1e-14, and a difference means something.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class Widened(TorchFunctionMode):
    """While it is active, whatever asks torch for float32 gets float64.

    Recomputation of activation checkpointing is covered where the backward pass runs in the calling
    thread, as it does on a CPU.

    Example:
        >>> with Widened():
        ...     torch.zeros(2, dtype=torch.float64).to(torch.float32).dtype
        torch.float64
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call the function with float64 in place of float32."""
        if func is Tensor.float:
            func = Tensor.double
        swapped = {name: _widen(value) for name, value in (kwargs or {}).items()}
        return func(*(_widen(value) for value in args), **swapped)


def _widen(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value
