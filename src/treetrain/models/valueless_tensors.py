"""Tensors without values in place of a model's own, and experts that ask for none.

On the way to the CPU tensors become fake ones that say they are there, so that the CPU's kernels
are chosen; the meta device itself stands for every other device.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import PreTrainedModel

_EXPERTS = "treetrain_valueless"


def drop_values(model: PreTrainedModel, host: bool) -> FakeTensorMode | None:
    """Replace experts that ask for values, and, for the CPU, meta tensors by fake ones.

    Args:
        model: a model on the meta device.
        host: whether it shall run as on the CPU.

    Returns:
        The mode that the fake tensors belong to; None where the model stays on the meta device.
    """
    _replace_experts(model)
    if not host:
        return None
    fakes = FakeTensorMode(allow_non_fake_inputs=True)
    made: dict[int, Tensor] = {}
    with fakes:
        for module in model.modules():
            kinds: Any = (module._parameters, module._buffers)
            for kind in kinds:
                for name, value in kind.items():
                    if value is not None:
                        if id(value) not in made:
                            made[id(value)] = empty_like(value, "cpu")
                        kind[name] = made[id(value)]
            for name, value in vars(module).items():
                if isinstance(value, Tensor):
                    setattr(module, name, made.setdefault(id(value), empty_like(value, "cpu")))
    return fakes


def empty_like(value: Tensor, device: str) -> Tensor:
    """Lay out a tensor of the same sizes, strides and dtype.

    Args:
        value: the tensor; of a parameter a parameter is made.
        device: where.

    Returns:
        The other, without values.
    """
    empty = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=device)
    if isinstance(value, nn.Parameter):
        return nn.Parameter(empty, requires_grad=value.requires_grad)
    return empty


def _replace_experts(model: PreTrainedModel) -> None:
    """Let experts that loop over those with tokens be computed in one call, which asks for none.

    Both keep the same rows for the backward pass, one for each token and expert.
    """
    from transformers.integrations import moe

    grouped = getattr(moe, "grouped_mm_experts_forward", None)
    registry = getattr(moe, "ExpertsInterface", None)
    if grouped is None or registry is None:
        return
    if _EXPERTS not in registry._global_mapping:
        names = {**vars(moe), "_grouped_linear": _grouped_linear}
        registry.register(_EXPERTS, FunctionType(grouped.__code__, names))
    for module in model.modules():
        config: Any = getattr(module, "config", None)
        if hasattr(config, "_experts_implementation"):
            config._experts_implementation_internal = _EXPERTS


def _grouped_linear(
    rows: Tensor,
    weight: Tensor,
    offs: Tensor,
    bias: Tensor | None = None,
    is_transposed: bool = False,
) -> Tensor:
    """As transformers', in the one operation that takes any dtype without values."""
    weight = weight if is_transposed else weight.transpose(-2, -1)
    output = torch.ops.transformers.grouped_mm_fallback(rows.to(weight.dtype), weight, offs)
    return output if bias is None else output.add_(bias)
