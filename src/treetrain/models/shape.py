"""The sizes of a model that decide how its work divides between parameters and attention."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from treetrain.errors import UnsupportedModelError
from treetrain.tree.metrics import ModelShape


def measure_shape(model: Any) -> ModelShape:
    """Read the sizes that the FLOP bound needs.

    Args:
        model: a model of transformers, wrapped by peft or not.

    Returns:
        Its sizes: of experts as many as a token is sent to, without embeddings and head.

    Raises:
        UnsupportedModelError: the config does not tell layers and heads as whole numbers.
    """
    config = model.config.get_text_config()
    sizes = [getattr(config, name, None) for name in ("num_hidden_layers", "num_attention_heads")]
    layers, heads = sizes
    if not (isinstance(layers, int) and isinstance(heads, int)):
        raise UnsupportedModelError(
            f"config must have num_hidden_layers and num_attention_heads, got {layers!r} and "
            f"{heads!r} in {type(config).__name__}; hand over a ModelShape instead"
        )
    return ModelShape(
        parameters=count_parameters(
            model, (model.get_input_embeddings(), model.get_output_embeddings())
        ),
        layers=layers,
        heads=heads,
        head_size=getattr(config, "head_dim", None) or config.hidden_size // heads,
    )


def count_parameters(model: nn.Module, outside: Iterable[nn.Module | None]) -> int:
    """Count the parameters that work on each token.

    Args:
        model: the model.
        outside: modules that are left out, as the embedding and the head are.

    Returns:
        Their number; of stacked experts the share that a token is sent to.
    """
    counted = {id(p) for module in outside if module is not None for p in module.parameters()}
    config: Any = getattr(model, "config", None)
    chosen = getattr(config.get_text_config(), "num_experts_per_tok", None) if config else None
    total = 0.0
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is None or id(parameter) in counted:
                continue
            counted.add(id(parameter))
            share = 1.0
            if chosen and parameter.ndim == 3 and parameter.shape[0] > chosen:
                share = chosen / parameter.shape[0]
            total += share * parameter.numel()
    return round(total)
