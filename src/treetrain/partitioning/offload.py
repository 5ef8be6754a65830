"""Activations of a forward pass held in host memory until the backward pass wants them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

_Packed = tuple[torch.device, Tensor] | Tensor


@contextmanager
def saved_on_host(model: nn.Module) -> Iterator[None]:
    """Hold what autograd saves inside the context in host memory.

    The model's own parameters, and views of them, stay where they are. Where the model's device is
    the host already, what is saved is copied and nothing is gained.

    Args:
        model: the model that runs inside.

    Yields:
        Nothing.
    """
    own = {
        parameter.untyped_storage().data_ptr()
        for parameter in model.parameters()
        if not _is_wrapped(parameter)
    }

    def pack(tensor: Tensor) -> _Packed:
        if _is_wrapped(tensor) or tensor.untyped_storage().data_ptr() in own:
            return tensor
        elsewhere = tensor.device.type != "cpu"
        # Strides are kept: kernels of the backward pass may sum in their order.
        host = torch.empty_like(tensor, device="cpu", pin_memory=elsewhere)
        # The copy is ordered before whatever writes to the tensor's memory next.
        return tensor.device, host.copy_(tensor, non_blocking=True)

    def unpack(packed: _Packed) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        device, host = packed
        return host.to(device, non_blocking=True)

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield


def _is_wrapped(tensor: Tensor) -> bool:
    """Whether a tensor is of a class of its own, as quantised weights are."""
    return type(tensor) not in (Tensor, nn.Parameter)
