"""Gradients of a head from the gradient of its logits, summed over chunks.

A head is any callable; what happens inside it is left to autograd, except that `linear` with a
trainable weight adds its weight gradient straight into the sum. Autograd alone would make a second
matrix as large as the weight for every chunk.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


class HeadGradients:
    """Sums of parameter gradients over chunks, in float32 or wider.

    Args:
        parameters: the trainable parameters of the head.
        device: where the head runs.
        autocast: dtype of the autocast region the head belongs in, or None.
    """

    def __init__(
        self, parameters: Sequence[Tensor], device: torch.device, autocast: torch.dtype | None
    ) -> None:
        self.parameters = parameters
        self._places = {id(parameter): place for place, parameter in enumerate(parameters)}
        self._sums: list[Tensor | None] = [None] * len(parameters)
        self._device = device
        self._autocast = autocast

    def compute_logits(
        self, head: Callable[[Tensor], Tensor], hidden: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute a chunk's logits with a graph of the head alone.

        Args:
            head: the head.
            hidden: hidden states of the chunk, [n, C].

        Returns:
            The graph's input [n, C]; logits [n, V] with their graph; and their memory [n, V] to
            overwrite, which is the logits' own unless the graph needs it or they are a view.
        """
        kept: set[int] = {name_storage(hidden)}

        def note_storage(tensor: Tensor) -> Tensor:
            kept.add(name_storage(tensor))
            return tensor

        local = hidden.detach().requires_grad_()
        with (
            torch.enable_grad(),
            autocast_region(self._device, self._autocast),
            torch.autograd.graph.saved_tensors_hooks(note_storage, lambda tensor: tensor),
            _SummedLinear(self),
        ):
            logits = head(local)
        writable = logits.detach()
        # A backward hook of the layer hands out a view that torch lets nobody overwrite.
        if logits._is_view() or name_storage(writable) in kept:
            writable = writable.clone()
        return local, logits, writable

    def collect(self, local: Tensor, logits: Tensor, gradient: Tensor) -> Tensor:
        """Go backward through one chunk's head.

        Args:
            local: the graph's input, from `compute_logits`.
            logits: the graph's output, from `compute_logits`.
            gradient: gradient of the loss with respect to the logits, [n, V].

        Returns:
            Gradient of the chunk's hidden states, [n, C].
        """
        # Backward operations take their dtypes from the forward ones, also inside autocast.
        with autocast_region(self._device, None):
            hidden_gradient, *gradients = torch.autograd.grad(
                logits, [local, *self.parameters], gradient, allow_unused=True
            )
        for place, value in enumerate(gradients):
            if value is not None:
                self.add(place, value)
        return torch.zeros_like(local) if hidden_gradient is None else hidden_gradient

    def place_of(self, tensor: object) -> int | None:
        """Index of a parameter whose gradient is summed here.

        Args:
            tensor: anything.

        Returns:
            Its index in `parameters`, or None.
        """
        return self._places.get(id(tensor))

    def add_product(self, place: int, left: Tensor, right: Tensor) -> None:
        """Add left^T right to a parameter's gradient.

        Args:
            place: index of the parameter, [V, C].
            left: [n, V].
            right: [n, C], of the same dtype.
        """
        total = self._sums[place]
        if total is not None and total.dtype == left.dtype:
            total.addmm_(left.t(), right)
        else:
            self.add(place, left.t() @ right)

    def add(self, place: int, gradient: Tensor) -> None:
        """Add to a parameter's gradient.

        Args:
            place: index of the parameter.
            gradient: what to add, of the parameter's shape.
        """
        total = self._sums[place]
        if total is None:
            wide = torch.promote_types(gradient.dtype, torch.float32)
            self._sums[place] = gradient.to(wide)
        else:
            total.add_(gradient)

    def hand_over(self, scale: Tensor | None = None) -> list[Tensor | None]:
        """Give the sums away; afterwards they are gone.

        Args:
            scale: what to multiply them by, a scalar, or None.

        Returns:
            One gradient per parameter in the parameter's dtype; None where the head did not use it.
        """
        sums = self._sums
        self._sums = [None] * len(self.parameters)
        return [
            None
            if total is None
            else (total if scale is None else total.mul_(scale)).to(parameter.dtype)
            for total, parameter in zip(sums, self.parameters, strict=True)
        ]


def name_storage(tensor: Tensor) -> int:
    """Name the memory a tensor lives in, also where it has no address because it has no values.

    Args:
        tensor: the tensor.

    Returns:
        A number that tensors share as long as they live in the same memory.
    """
    return tensor.untyped_storage()._cdata


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """Dtype of the autocast region the caller is in.

    Args:
        device: the device in question.

    Returns:
        The dtype, or None outside such a region.
    """
    # The meta device, on which memory is measured, has no autocast.
    if not torch.amp.is_autocast_available(device.type):
        return None
    if not torch.is_autocast_enabled(device.type):
        return None
    return torch.get_autocast_dtype(device.type)


def autocast_region(
    device: torch.device, dtype: torch.dtype | None
) -> contextlib.AbstractContextManager[Any]:
    """Enter the autocast region of the forward pass again, or none where there was none.

    Args:
        device: where the head runs.
        dtype: what `autocast_dtype` gave in the forward pass.

    Returns:
        The context.
    """
    if not torch.amp.is_autocast_available(device.type):
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None, cache_enabled=False)


class _SummedLinear(TorchFunctionMode):
    """Lets `linear` with a parameter of the head add its weight gradient into the sum."""

    def __init__(self, gradients: HeadGradients) -> None:
        super().__init__()
        self._gradients = gradients

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.linear:
            given = dict(zip(("input", "weight", "bias"), args, strict=False)) | kwargs
            if self._gradients.place_of(given["weight"]) is not None:
                return _Linear.apply(
                    given["input"], given["weight"], given.get("bias"), self._gradients
                )
        return func(*args, **kwargs)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, gradients: HeadGradients
    ) -> Tensor:
        ctx.save_for_backward(hidden, weight)
        ctx.places, ctx.gradients = (
            (gradients.place_of(weight), gradients.place_of(bias)),
            gradients,
        )
        return F.linear(hidden, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight = ctx.saved_tensors
        gradients: HeadGradients = ctx.gradients
        rows = grads[0].flatten(0, -2)
        # Under autocast the product was computed in a narrower dtype than its inputs have.
        inputs = hidden.flatten(0, -2).to(rows.dtype)
        weight_place, bias_place = ctx.places
        gradients.add_product(weight_place, rows, inputs)
        if bias_place is not None:
            gradients.add(bias_place, rows.sum(0))
        hidden_gradient = (grads[0] @ weight.to(rows.dtype)).to(hidden.dtype)
        return hidden_gradient, None, None, None
