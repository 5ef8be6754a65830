"""The gateways of a partition, one for each attention module of a model, and models without any."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import nn

from treetrain.errors import UnsupportedModelError
from treetrain.models.hooks import name_module
from treetrain.packing.gateway import LayerGateway
from treetrain.packing.packed_tree import PackedTree

Gateways = Mapping[nn.Module, LayerGateway]


def check_gateways(
    model: nn.Module,
    attention: Iterable[nn.Module],
    packed: PackedTree,
    *,
    gateways: Gateways | None,
) -> None:
    """Refuse a partition that a model cannot compute, or whose gateways are not there.

    Args:
        model: the model.
        attention: its attention modules; none where it takes trees as one dense mask.
        packed: the packed tree.
        gateways: the gateway of each attention module; None for a whole tree.

    Raises:
        ValueError: if gateways are missing.
        UnsupportedModelError: if it takes trees as one dense mask.
    """
    if gateways is None and not packed.ancestors:
        return
    modules = list(attention)
    if not modules:
        raise UnsupportedModelError(
            f"{type(model).__name__} takes trees as one dense mask, through which no partition "
            "reads its ancestors; prepare(model) with another backend, or train it on whole trees "
            "(a larger token budget)"
        )
    if gateways is None:
        raise ValueError(
            f"gateways must be given for a row with {packed.ancestors} ancestors, got None"
        )
    if missing := [module for module in modules if module not in gateways]:
        raise ValueError(
            f"gateways must hold one for each of {len(modules)} attention modules, got none for "
            f"{name_module(missing[0])}"
        )
