"""Float64 that is float64 throughout: transformers computes norms and rotary angles in float32.

In such a model two right float64 gradients differ by 1e-7. Where requests for float32 are answered
with float64 they differ by 1e-14, and a difference means something.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


class Widened(TorchFunctionMode):
    """While it is active, whatever asks torch for float32 gets float64.

    Backward passes are not covered: torch sets a mode aside while it runs one. What activation
    checkpointing computes again there would be float32 again; `widen` switches it off.

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


@contextmanager
def widen(model: nn.Module) -> Iterator[None]:
    """Compute a model in float64 throughout, its activations stored instead of computed again.

    Args:
        model: a float64 model; its activation checkpointing is off for the while.
    """
    name = "gradient_checkpointing"
    layers = [module for module in model.modules() if getattr(module, name, False) is True]
    try:
        for layer in layers:
            setattr(layer, name, False)
        with Widened():
            yield
    finally:
        for layer in layers:
            setattr(layer, name, True)


def _widen(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value
