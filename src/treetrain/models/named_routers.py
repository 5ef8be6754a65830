"""Finds the routers of a mixture of experts, and the place of their logits in what they return.

Both are known by what transformers records of each model class, its `_can_record_outputs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from treetrain.errors import UnsupportedModelError


def find_routers(model: PreTrainedModel, decoder: nn.Module) -> dict[nn.Module, tuple[str, int]]:
    """Find the routers of a model, or refuse it.

    Args:
        model: the model.
        decoder: the part of it that returns hidden states.

    Returns:
        As `list_routers`, one at least.

    Raises:
        UnsupportedModelError: there is none.
    """
    routers = list_routers(model, decoder)
    if not routers:
        raise UnsupportedModelError(
            f"{type(model).__name__} has no router that transformers can name (no 'router_logits' "
            "in _can_record_outputs of its classes); leave router= out: it is no mixture of "
            "experts, or one whose router's loss cannot be computed"
        )
    return routers


def list_routers(model: PreTrainedModel, decoder: nn.Module) -> dict[nn.Module, tuple[str, int]]:
    """List the routers of a model by what transformers records of its classes.

    Args:
        model: the model.
        decoder: the part of it that returns hidden states.

    Returns:
        For each router its qualified name in the model, and the place of its logits in its output.
    """
    inside = set(decoder.modules())
    routers: dict[nn.Module, tuple[str, int]] = {}
    for owner in model.modules():
        if not isinstance(owner, PreTrainedModel):
            continue
        recorded: Any = getattr(type(owner), "_can_record_outputs", None)
        specs = recorded.get("router_logits", []) if isinstance(recorded, Mapping) else []
        for spec in specs if isinstance(specs, list) else [specs]:
            for name, module in owner.named_modules():
                if module in inside and _matches(spec, name, module):
                    # What transformers takes of a class that is named without a place.
                    routers[module] = (name, getattr(spec, "index", 1))
    names = {module: name for name, module in model.named_modules()}
    return {module: (names[module], index) for module, (_, index) in routers.items()}


def _matches(spec: Any, name: str, module: nn.Module) -> bool:
    """Whether one of transformers' descriptions of what to record means a module."""
    kind = spec if isinstance(spec, type) else getattr(spec, "target_class", None)
    suffix = spec if isinstance(spec, str) else getattr(spec, "class_name", None)
    place = getattr(spec, "layer_name", None)
    named = suffix is not None and name.endswith(suffix)
    if not named and not (kind is not None and isinstance(module, kind)):
        return False
    return place is None or f".{place.strip('.')}." in f".{name}."
