"""What a model computes between its decoder's hidden states and its output layer.

Most compute nothing there, some scale, and some run modules of their own: a dense layer and a norm
before the output layer. Which it is, is found by watching one plain call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from treetrain.errors import UnsupportedModelError


@dataclass(frozen=True, eq=False)
class BeforeHead:
    """The way of hidden states from the decoder to the output layer.

    Attributes:
        layer: the model's output layer.
        module: what hidden states run through; None for nothing. It may hold the output layer.
        scale: factor of hidden states.
    """

    layer: nn.Module
    module: nn.Module | None = None
    scale: float = 1.0

    def __call__(self, hidden: Tensor) -> Tensor:
        """Compute what the output layer receives.

        Args:
            hidden: the decoder's hidden states, [T, C].

        Returns:
            The output layer's input, [T, C'].
        """  # noqa: DOC501, DOC503 (what the module does was seen before)
        if self.scale != 1.0:
            hidden = hidden * self.scale
        if self.module is None:
            return hidden
        if all(part is not self.layer for part in self.module.modules()):
            return self.module(hidden[None])[0]
        # The module goes on to the output layer, whose input is wanted.
        hook = self.layer.register_forward_pre_hook(_stop, prepend=True)
        try:
            self.module(hidden[None])
        except _Reached as reached:
            return reached.hidden[0]
        finally:
            hook.remove()
        raise AssertionError(f"{type(self.module).__name__} did not call the output layer")


class _Reached(Exception):  # noqa: N818 (no error)
    def __init__(self, hidden: Tensor) -> None:
        super().__init__()
        self.hidden = hidden


def _stop(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    del module
    raise _Reached(inputs[0])


def find_before_head(model: PreTrainedModel, decoder: nn.Module, tokens: Tensor) -> BeforeHead:
    """Find what stands between a model's decoder and its output layer.

    Args:
        model: the model, in eval mode.
        decoder: the part of it that returns hidden states.
        tokens: one sequence, [1, T].

    Returns:
        The way from one to the other.

    Raises:
        UnsupportedModelError: if the model has no output layer, or its input cannot be told from
            the hidden states.
    """
    name = type(model).__name__
    layer = model.get_output_embeddings()
    if layer is None:
        raise UnsupportedModelError(
            f"{name} has no output layer (get_output_embeddings() is None); load it as a causal "
            "language model, AutoModelForCausalLM"
        )
    calls: list[tuple[nn.Module, Tensor, Any]] = []
    outputs: list[Tensor] = []
    reached: list[Tensor] = []

    def watch(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if inputs and isinstance(inputs[0], Tensor):
            calls.append((module, inputs[0], output))

    inside = {*decoder.modules(), *layer.modules()}
    watched = [module for module in model.modules() if module not in inside]
    hooks = [module.register_forward_hook(watch) for module in watched]
    # Before the layer's own hooks, with which the head calls it.
    hooks += [
        layer.register_forward_pre_hook(lambda _, inputs: reached.append(inputs[0]), prepend=True)
    ]
    hooks += [decoder.register_forward_hook(lambda _, __, output: outputs.append(output[0]))]
    try:
        with torch.no_grad():
            model(input_ids=tokens, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    if len(outputs) != 1 or len(reached) != 1:
        raise UnsupportedModelError(
            f"{name} calls its decoder {len(outputs)} times and its output layer {len(reached)} "
            "times in one forward pass, which must be once each; train it on separate sequences"
        )
    hidden, wanted = outputs[0], reached[0]
    if _is_same(wanted, hidden):
        return BeforeHead(layer)
    if (scale := find_factor(hidden, wanted)) is not None:
        return BeforeHead(layer, scale=scale)
    # Inner modules return first.
    for module, inputs, output in calls:
        holds = any(part is layer for part in module.modules())
        if _is_same(inputs, hidden) and (holds or _is_same(output, wanted)):
            return BeforeHead(layer, module)
    raise UnsupportedModelError(
        f"{name} has something between its decoder's hidden states of size {hidden.shape[-1]} and "
        f"its output layer's input of size {wanted.shape[-1]} that is neither a factor nor a "
        "module; train it on separate sequences"
    )


def _is_same(one: object, other: Tensor) -> bool:
    return isinstance(one, Tensor) and one.shape == other.shape and torch.equal(one, other)


def find_factor(values: Tensor, wanted: Tensor) -> float | None:
    """Find the number by which one tensor has to be multiplied to give another.

    Args:
        values: a tensor, not all 0.
        wanted: another.

    Returns:
        The factor, or None if there is none.
    """
    if values.shape != wanted.shape:
        return None
    wide, wanted = values.double(), wanted.double()
    # Over all of them, since each is rounded.
    factor = float((wide * wanted).sum() / (wide * wide).sum().clamp(min=1e-300))
    allowed = 4 * torch.finfo(values.dtype).eps * float(wanted.abs().max())
    return factor if float((wide * factor - wanted).abs().max()) <= allowed else None
