"""Bytes that a forward pass keeps for its backward pass."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


def measure_saved_bytes(model: nn.Module, forward: Callable[[], object]) -> int:
    """Count the distinct memory that autograd keeps, without the model's own parameters.

    Args:
        model: the model whose parameters do not count.
        forward: a forward pass.

    Returns:
        Bytes of all distinct storages that saved tensors live in.
    """
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}
    alive: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
            # Memory that is freed could be given out again and be counted once for two tensors.
            alive.append(tensor.detach())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        result = forward()
    del result
    return sum(kept.values())
