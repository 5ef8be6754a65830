"""Backward passes that cannot be differentiated again, refused by name where that is tried."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Backward = Callable[..., tuple[Tensor | None, ...]]


def differentiable_once(backward: Backward) -> Backward:
    """Mark the backward pass of an autograd function as one without a gradient of its own.

    torch's `once_differentiable` marks only results of gradients that require a gradient
    themselves, and a loss's first gradient is a constant: second derivatives would then leave the
    function out without a word.

    Args:
        backward: the backward pass, a static method of an autograd function that saves its
            differentiable inputs, or an empty part of each.

    Returns:
        The same backward pass; going backward through its results raises RuntimeError.
    """

    @functools.wraps(backward)
    def run(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        ctx = _ReadOnce(ctx)
        with torch.no_grad():
            results = backward(ctx, *grads)
        if not torch.is_grad_enabled():  # no create_graph
            return results
        # What was saved ties the results to the function's inputs, so that a search from those
        # finds the refusal.
        ties = [*grads, *(saved for saved in ctx.saved_tensors if saved is not None)]
        given = [result.detach().requires_grad_() for result in results if result is not None]
        marked = iter(_Refuse.apply(len(given), *given, *ties))
        return tuple(None if result is None else next(marked) for result in results)

    return run


class _ReadOnce:
    """An autograd context whose saved tensors are unpacked once, which is all checkpointing allows.

    They go when the backward pass ends.
    """

    def __init__(self, ctx: Any) -> None:
        vars(self)["ctx"] = ctx

    @functools.cached_property
    def saved_tensors(self) -> tuple[Tensor, ...]:
        return self.ctx.saved_tensors

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["ctx"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.ctx, name, value)


class _Refuse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, count: int, *values: Tensor) -> tuple[Tensor, ...]:
        del ctx
        return tuple(value.view_as(value) for value in values[:count])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        del ctx, grads
        raise RuntimeError(
            "trees must be differentiated once, got a second derivative (create_graph=True and a "
            "backward pass through the gradients), which attention and head do not compute; take "
            "second derivatives on separate sequences through the plain model"
        )
