"""Refusing a model from its config alone, before its weights are loaded, where the config can tell.

The model is laid out on torch's meta device, which keeps shapes and no values. What only a run
shows, for example a tree that does not reach the attention, is left to `prepare`.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
)

from treetrain.errors import UnsupportedModelError
from treetrain.models.guards import check_embeddings, check_model, check_neighbours
from treetrain.models.positions import check_alibi
from treetrain.models.text_call import find_called, find_decoder


def check_config(config: PreTrainedConfig, *, attention: str | None = None) -> None:
    """Refuse a model that cannot be computed on trees, as far as its config says so.

    Args:
        config: the model's config.
        attention: attention implementation, "sdpa" or "eager"; None: transformers' choice.

    Raises:
        UnsupportedModelError: if it is no causal language model, or one that `prepare` would refuse
            for its class, its config or its modules.

    Example:
        >>> from transformers import AutoConfig
        >>> check_config(AutoConfig.for_model("llama"))
    """  # noqa: DOC502, DOC503 (the checks raise)
    # Code that comes with a model stands in no table of transformers.
    has_code = bool(getattr(config, "auto_map", None))
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING and not has_code:
        what = (
            "is an encoder-decoder and has no paths"
            if config.is_encoder_decoder
            else "has no causal language model in transformers"
        )
        raise UnsupportedModelError(
            f"a model of type {config.model_type!r} {what}; train it on separate sequences, or "
            "name a causal language model"
        )
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    # Whatever a model's own code raises. Loading it comes next, which is where faults are told.
    except Exception:  # noqa: BLE001
        return
    check_model(model)
    called = _find_called(model.eval())
    if called is None:
        return
    decoder = find_decoder(model, called)
    check_neighbours(decoder, called)
    check_embeddings(decoder)
    check_alibi(model, decoder)


def _find_called(model: PreTrainedModel) -> list[nn.Module] | None:
    """The modules that run on text, or None where that cannot be told without values."""
    try:
        return find_called(model, torch.ones(1, 4, dtype=torch.int64, device="meta"))
    # Code that asks for a value, as some experts do, fails on the meta device in its own way.
    except Exception:  # noqa: BLE001
        reads_text_alone = model.config.get_text_config() is model.config
        return list(model.modules()) if reads_text_alone else None
