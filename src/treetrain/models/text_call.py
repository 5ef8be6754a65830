"""Which modules of a model run in a plain call on text, and which of them is its decoder.

What a model holds besides (towers for pictures and sound, wrappers around a decoder) says nothing
about its text.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from treetrain.errors import UnsupportedModelError


def find_called(model: PreTrainedModel, tokens: Tensor) -> list[nn.Module]:
    """Find the modules that run in a plain call.

    Args:
        model: the model, in eval mode.
        tokens: one sequence, [1, T] int64.

    Returns:
        The modules in the order in which they began, each once; the model itself comes first.

    Raises:
        UnsupportedModelError: if the model cannot run such a call.
    """
    called: dict[nn.Module, None] = {}

    def watch(module: nn.Module, inputs: Any) -> None:
        del inputs
        called[module] = None

    hooks = [module.register_forward_pre_hook(watch) for module in model.modules()]
    try:
        with torch.no_grad():
            model(input_ids=tokens, use_cache=False)
    except (ValueError, TypeError, AttributeError, RuntimeError) as error:
        raise UnsupportedModelError(
            f"{type(model).__name__} cannot run a plain call on a few tokens "
            f"({type(error).__name__}: {error!s:.200}), which trees are checked against; mend that "
            "first: model(input_ids=tokens) must run by itself"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
    return list(called)


def find_decoder(model: PreTrainedModel, called: list[nn.Module]) -> nn.Module:
    """Find the part of a model that returns hidden states.

    Args:
        model: the model.
        called: what `find_called` gave.

    Returns:
        The outermost part that runs and is a transformers model of its own.

    Raises:
        UnsupportedModelError: if there is none.
    """
    parts = [module for module in called if module is not model]
    decoder = next((part for part in parts if isinstance(part, PreTrainedModel)), None)
    if decoder is not None:
        return decoder
    name = type(model).__name__
    if model.get_output_embeddings() is None:
        raise UnsupportedModelError(
            f"{name} is a decoder without an output layer; load it as a causal language model, "
            "AutoModelForCausalLM"
        )
    raise UnsupportedModelError(
        f"{name} has an output layer, but no part below it is a transformers model that returns "
        "hidden states; train it on separate sequences"
    )
