"""Models inside wrappers, those of peft and of torch.compile. peft is not imported.

A tree call runs the decoder and the output layer of the model inside. What a wrapper does besides,
in a forward of its own, it would go around: such wrappers are refused here. What adapters do inside
the model is in `adapters`.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from treetrain.errors import UnsupportedModelError
from treetrain.models.guards import check_hooks, check_wrappers

#: Settings of adapters that work on the call itself, and what they do.
_SETTINGS_OF_CALLS = {
    "is_prompt_learning": "puts trained tokens, or keys and values, before each sequence",
    "is_adaption_prompt": "puts trained keys and values before each sequence",
    "alora_invocation_tokens": "is switched on by tokens that it looks for in each sequence",
    "n_tasks": "takes its weights by a task_ids argument of each call",
    "xlora_depth": "weighs its parts by hidden states of the whole call",
}


def unwrap_model(model: nn.Module) -> nn.Module:
    """Find the model inside wrappers of peft and of torch.compile.

    Args:
        model: a model, wrapped any number of times or not at all.

    Returns:
        The model inside.

    Raises:
        UnsupportedModelError: if a wrapper does more than to hand its call on.
    """  # noqa: DOC502 (the checks raise)
    while isinstance(model, nn.Module):
        if is_compiled_wrapper(model):
            check_hooks(model)
            model = model._modules["_orig_mod"]  # pyright: ignore[reportAssignmentType]
        elif _wraps_adapters(model):
            _check_settings(model)
            check_wrappers(model)
            if isinstance(tuner := model._modules.get("base_model"), nn.Module):
                check_wrappers(tuner)
            model = model.get_base_model()  # pyright: ignore[reportCallIssue]
        else:
            break
    return model


def is_compiled_wrapper(module: nn.Module) -> bool:
    """Say whether a module is what `torch.compile` made of another.

    Args:
        module: the module.

    Returns:
        Whether it is.
    """
    return "_orig_mod" in module._modules


def is_compiled(module: nn.Module) -> bool:
    """Say whether a module's own call or forward is compiled in place.

    Args:
        module: the module.

    Returns:
        Whether it is.
    """
    forward = vars(module).get("forward")
    return module._compiled_call_impl is not None or hasattr(forward, "_torchdynamo_orig_callable")


def warn_where_uncompiled(wrapper: nn.Module, model: nn.Module, decoder: nn.Module) -> None:
    """Say that what is compiled is the model's own forward, which a tree call does not run.

    Args:
        wrapper: the model as the caller gave it.
        model: what `unwrap_model` found in it.
        decoder: the part of it that a tree call runs.
    """
    around = is_compiled(model) or any(map(is_compiled_wrapper, wrapper.modules()))
    if around and not any(map(is_compiled, decoder.modules())):
        warnings.warn(
            f"the forward of {type(model).__name__} is compiled, but a tree call runs its decoder "
            "and its output layer, which are not; to have trees run compiled, compile the layers: "
            "for layer in model.base_model.layers: layer.compile()",
            stacklevel=4,
        )


def check_same_logits(wrapper: nn.Module, model: nn.Module, tokens: Tensor) -> None:
    """Refuse a wrapper of adapters whose own call gives other logits than the model inside.

    Args:
        wrapper: the model as the caller gave it, in eval mode.
        model: what `unwrap_model` found in it.
        tokens: one sequence, [1, T].

    Raises:
        UnsupportedModelError: if they differ.
    """
    while is_compiled_wrapper(wrapper):
        wrapper = wrapper._modules["_orig_mod"]  # pyright: ignore[reportAssignmentType]
    if wrapper is model:
        return
    with torch.no_grad():
        outer, inner = (part(input_ids=tokens, use_cache=False).logits for part in (wrapper, model))
    allowed = 8 * torch.finfo(inner.dtype).eps * float(inner.abs().max())
    if outer.shape != inner.shape or not float((outer - inner).abs().max()) <= allowed:
        raise UnsupportedModelError(
            f"{type(wrapper).__name__} gives other logits than the {type(model).__name__} inside "
            "it, so that its forward does more than to hand the call on, and a tree call would go "
            "around that; train it on separate sequences"
        )


def _wraps_adapters(model: nn.Module) -> bool:
    """Whether a model is one of peft's; looked up in classes, since peft hands attributes on."""
    kind = type(model)
    return hasattr(kind, "get_base_model") and hasattr(kind, "peft_config")


def _check_settings(wrapper: nn.Module) -> None:
    configs: Any = wrapper.peft_config
    active: Any = wrapper.active_adapters
    for name in active:
        for setting, what in _SETTINGS_OF_CALLS.items():
            if getattr(configs.get(name), setting, None):
                raise UnsupportedModelError(
                    f"{type(wrapper).__name__} has an adapter {name!r} "
                    f"({type(configs[name]).__name__}) that {what}; a tree call runs the model "
                    "inside and would go around it: train it on separate sequences, or use an "
                    "adapter that changes layers in place, such as LoRA"
                )
