"""Adapters that peft puts into a model's layers: which of them are on, and what draws at random.

Layers are known by the switches that peft gives their classes, since peft is not imported. They
compute on a tree what they compute on each sequence, as they are switched at the time.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from treetrain.errors import RandomModelError

#: Rates of adapters that drop with functions instead of dropout modules.
_RATES = ("rank_dropout", "module_dropout")


def read_adapters(model: nn.Module) -> Hashable:
    """Read which adapters are switched on, layer by layer.

    Args:
        model: the model inside.

    Returns:
        A value that is equal where the same adapters are active, off and merged.
    """
    return tuple(
        (tuple(layer.active_adapters), layer.disable_adapters, _is_merged(layer))
        for _, layer in _adapter_layers(model)
    )


def find_idle(model: nn.Module) -> set[nn.Module]:
    """Find the modules of adapters that are off, not active, or merged into weights.

    Args:
        model: the model inside.

    Returns:
        The modules, none of which a forward pass runs now.
    """
    idle: set[nn.Module] = set()
    for _, layer in _adapter_layers(model):
        running = _running(layer)
        for child in layer.children():
            if isinstance(child, nn.ModuleDict):
                for name, part in child.items():
                    if name not in running:
                        idle.update(part.modules())
    return idle


def check_adapter_rates(model: nn.Module) -> None:
    """Refuse adapters in training that drop rows, or themselves, at random.

    Args:
        model: the model inside.

    Raises:
        RandomModelError: if an active one would drop anything.
    """
    for name, layer in _adapter_layers(model):
        for rate in _RATES:
            rates = getattr(layer, rate, None)
            if not (layer.training and isinstance(rates, Mapping)):
                continue
            for adapter in _running(layer):
                if rates.get(adapter):
                    raise RandomModelError(
                        f"{name} has an adapter {adapter!r} with {rate}={rates[adapter]}; a shared "
                        "token cannot be dropped differently for each sequence",
                        f"make the adapter with {rate}=0, or call model.eval()",
                    )


def adapters_draw(model: nn.Module, run: Callable[[], object]) -> bool:
    """Say whether an adapter layer draws random numbers in a plain training call.

    Adapters start with weights of 0, where what they draw does not show in any result.

    Args:
        model: the model inside.
        run: makes the call.

    Returns:
        Whether one does.
    """
    # Some draw a number even for a rate of 0, which `check_adapter_rates` has looked at.
    layers = [layer for _, layer in _adapter_layers(model) if not hasattr(layer, "module_dropout")]
    if not layers:
        return False
    before: dict[nn.Module, list[Tensor]] = {}
    found = False

    def note(layer: nn.Module, inputs: Any) -> None:
        before[layer] = _generator_states(layer)

    def compare(layer: nn.Module, inputs: Any, output: Any) -> None:
        nonlocal found
        states = _generator_states(layer)
        found |= not all(map(torch.equal, before.pop(layer), states))

    handles = [layer.register_forward_pre_hook(note) for layer in layers]
    handles += [layer.register_forward_hook(compare) for layer in layers]
    try:
        with torch.random.fork_rng(), torch.no_grad():
            run()
    finally:
        for handle in handles:
            handle.remove()
    return found


def read_rates(model: nn.Module) -> tuple[float, ...]:
    """Read the rates at which a model's modules drop, as they stand in their attributes.

    Args:
        model: the model.

    Returns:
        The rates, in the order of the modules.
    """
    return tuple(
        value
        for module in model.modules()
        for name, value in vars(module).items()
        if isinstance(value, float) and (name == "p" or "drop" in name)
    )


def _adapter_layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Layers that hold adapters, by the switches that peft gives their classes."""
    for name, module in model.named_modules():
        # A transformers model has methods of these names.
        if isinstance(inspect.getattr_static(type(module), "disable_adapters", None), property):
            yield name, module


def _running(layer: Any) -> tuple[str, ...]:
    """Adapters of a layer that its forward computes now."""
    off = layer.disable_adapters or _is_merged(layer)
    return () if off else tuple(layer.active_adapters)


def _is_merged(layer: Any) -> bool:
    return bool(getattr(layer, "merged", False))


def _generator_states(layer: nn.Module) -> list[Tensor]:
    devices = {parameter.device for parameter in layer.parameters()}
    return [
        torch.get_rng_state(),
        *(torch.cuda.get_rng_state(device) for device in devices if device.type == "cuda"),
    ]
