"""Gives a model back as it was after a check, also when the check is interrupted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from treetrain.models.prepare import prepare
from treetrain.models.prepared import PreparedModel, find_prepared


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Put gradients, modes and random generators back at the end; weights are not looked after.

    Inside, the parameters start without gradients; the caller's gradients are kept, not copied.

    Args:
        model: the model.

    Yields:
        Nothing.
    """
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    modes = [(module, module.training) for module in model.modules()]
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    try:
        with torch.random.fork_rng(devices=sorted(devices, key=str)):
            for parameter, _ in gradients:
                parameter.grad = None
            yield
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient
        for module, training in modes:
            module.training = training


@contextmanager
def temporarily_prepared(model: nn.Module, backend: str | None = None) -> Iterator[PreparedModel]:
    """Prepare a model for a while; one that is prepared stays so.

    Args:
        model: a Hugging Face causal model, prepared or not.
        backend: attention backend for a model that is not prepared; None: "auto".

    Yields:
        The handle.

    Raises:
        ValueError: `backend` is given for a prepared model.
    """
    try:
        prepared = find_prepared(model)
    except ValueError:
        prepared = prepare(model, backend or "auto")
        try:
            yield prepared
        finally:
            prepared.undo()
        return
    if backend is not None:
        raise ValueError(
            f"backend must be None for a model that is prepared already, got {backend!r}; undo it, "
            "or leave the argument out"
        )
    yield prepared


def take_gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    """Take the gradients off the parameters.

    Args:
        model: the model; afterwards its parameters have no gradient.

    Returns:
        The gradient of each trainable parameter by name; zeros for one that got none.
    """
    gradients: dict[str, torch.Tensor] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            gradient = parameter.grad
            gradients[name] = torch.zeros_like(parameter) if gradient is None else gradient
        parameter.grad = None
    return gradients
