"""Gradients of a step that are all of it or none, whatever stops the step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from treetrain.errors import UnsupportedModelError


@contextmanager
def all_or_none(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Add what backward passes inside the context give to the parameters' gradients at its end.

    Inside, gradients start at None. At the end they are added to those from before, in place and in
    one call that nothing interrupts; where the context is left by an exception, also by Ctrl-C, the
    gradients from before stand as they were. While a step runs on top of earlier gradients both
    exist.

    Args:
        parameters: the parameters that the backward passes reach.

    Yields:
        Nothing.

    Raises:
        BaseException: whatever was raised inside.

    Example:
        >>> weight = nn.Parameter(torch.ones(2))
        >>> weight.grad = torch.ones(2)
        >>> with all_or_none([weight]):
        ...     (3 * weight).sum().backward()
        >>> weight.grad
        tensor([4., 4.])
    """
    chosen = [parameter for parameter in parameters if parameter.requires_grad]
    before = [(parameter, parameter.grad) for parameter in chosen]
    # What cannot be added to in place fails here, before anything is computed.
    _scale_by_one([old for _, old in before if old is not None])
    versions = [old._version for _, old in before if old is not None]
    try:
        for parameter in chosen:
            parameter.grad = None
        yield
        olds, news = _both(before)
        if olds:
            with torch.no_grad():
                torch._foreach_add_(olds, news)  # pyright: ignore[reportPrivateImportUsage]
        for parameter, old in before:
            if old is not None:
                parameter.grad = old
    except BaseException:
        # An interruption may come right after the sum: then the step is whole.
        added = [old._version for _, old in before if old is not None] != versions
        for parameter, old in before:
            if old is not None or not added:
                parameter.grad = old
        raise


def check_gradient_hooks(model: nn.Module) -> None:
    """Refuse hooks on gradients of parameters, which would see those of each part of a step.

    Args:
        model: the model.

    Raises:
        UnsupportedModelError: a trainable parameter has one; names the first.
    """
    for name, parameter in model.named_parameters():
        after = getattr(parameter, "_post_accumulate_grad_hooks", None)
        if parameter.requires_grad and (parameter._backward_hooks or after):
            raise UnsupportedModelError(
                f"parameter {name} has a hook on its gradient, which would run once for each "
                "partition, on a part of the gradient (an optimiser in the backward pass, a "
                "clamp, or a wrapper that reduces gradients?); remove it for partitioned steps, "
                "or train trees that fit undivided"
            )


@torch.no_grad()
def _scale_by_one(gradients: list[torch.Tensor]) -> None:
    if gradients:
        torch._foreach_mul_(gradients, 1.0)  # pyright: ignore[reportPrivateImportUsage]


def _both(
    before: list[tuple[nn.Parameter, torch.Tensor | None]],
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    olds: list[torch.Tensor] = []
    news: list[torch.Tensor] = []
    for parameter, old in before:
        new = parameter.grad
        if old is not None and new is not None and new is not old:
            olds.append(old)
            news.append(new.to(old.dtype))
    return olds, news
