"""Models and calls that trees cannot serve, refused by name before anything is computed."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from treetrain.errors import UnsupportedModelError
from treetrain.models.hooks import REGISTERED_NAMES

#: Rotary embeddings whose frequencies depend on the length of the longest sequence of the call.
_LENGTH_DEPENDENT_ROPE = frozenset({"dynamic", "longrope"})


def check_model(model: nn.Module) -> None:
    """Refuse what cannot be prepared, from its class and config alone.

    Args:
        model: what the caller wants to prepare.

    Raises:
        TypeError: if it is no Hugging Face model.
        UnsupportedModelError: if it is one that cannot be computed on a tree.
    """
    if not isinstance(model, PreTrainedModel):
        raise TypeError(
            f"model must be a transformers PreTrainedModel, got {type(model).__name__}; "
            "unwrap it first"
        )
    name = type(model).__name__
    config = model.config.get_text_config()
    if getattr(model.config, "is_encoder_decoder", False):
        raise UnsupportedModelError(
            f"{name} is an encoder-decoder and has no paths; train it on separate sequences"
        )
    implementation = config._attn_implementation
    if implementation in REGISTERED_NAMES.values():
        raise UnsupportedModelError(
            f"{name} shares its config with a model that is prepared; give it one of its own: "
            "model.config = copy.deepcopy(model.config) when it is made, or undo the other first"
        )
    if implementation not in REGISTERED_NAMES:
        raise UnsupportedModelError(
            f"{name} attends through {implementation!r}; call "
            "model.set_attn_implementation('sdpa') or 'eager' before prepare(model)"
        )
    if implementation not in AttentionMaskInterface().valid_keys():
        raise UnsupportedModelError(f"transformers has no mask function for {implementation!r}")
    if not model._can_set_attn_implementation():
        raise UnsupportedModelError(
            f"{name} does not attend through transformers' AttentionInterface, so that the tree "
            "cannot reach its attention; train it on separate sequences"
        )
    if getattr(config, "reorder_and_upcast_attn", False) and implementation == "eager":
        raise UnsupportedModelError(
            f"{name} has reorder_and_upcast_attn, an attention of its own; set it to False in its "
            "config"
        )
    if getattr(config, "output_router_logits", False):
        raise UnsupportedModelError(
            f"{name} has output_router_logits=True, but the router's auxiliary loss is not "
            "computed on trees; set it to False in the config to train without it"
        )


def check_layers(model: PreTrainedModel, attention_modules: int) -> None:
    """Refuse a model some of whose layers do not attend through the interface.

    Args:
        model: the model.
        attention_modules: number of modules that attended in one forward pass.

    Raises:
        UnsupportedModelError: if it is smaller than the number of layers.
    """
    layers = model.config.get_text_config().num_hidden_layers
    if attention_modules < layers:
        raise UnsupportedModelError(
            f"only {attention_modules} of the {layers} layers of {type(model).__name__} attend "
            "through transformers' AttentionInterface; layers of another kind (recurrent, "
            "convolution) would run from one branch into the next; train it on separate sequences"
        )


def check_convolutions(decoder: nn.Module) -> None:
    """Refuse a model in which tokens are mixed with their packed neighbours.

    Args:
        decoder: the part that returns hidden states.

    Raises:
        UnsupportedModelError: if it holds a convolution over more than one token.
    """
    for name, module in decoder.named_modules():
        if isinstance(module, nn.Conv1d) and module.kernel_size[0] > 1:
            raise UnsupportedModelError(
                f"{name} convolves {module.kernel_size[0]} neighbouring tokens, which would mix "
                "one branch into the next; train this model on separate sequences"
            )


def find_dropouts(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """List the dropout modules of a model.

    Args:
        model: the model.

    Returns:
        Pairs of qualified name and module.
    """
    return [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.modules.dropout._DropoutNd)
    ]


def check_dropouts(dropouts: list[tuple[str, nn.Module]]) -> None:
    """Refuse a training call in which a dropout module is active.

    Args:
        dropouts: what `find_dropouts` returned.

    Raises:
        UnsupportedModelError: if one would drop anything.
    """
    for name, module in dropouts:
        rate: Any = getattr(module, "p", 0.0)
        if module.training and rate > 0:
            raise UnsupportedModelError(
                f"{name} would drop {rate} of its input; a shared token cannot be dropped "
                "differently for each sequence: set the model's dropout rates to 0 in its config, "
                "or call model.eval()"
            )


def check_depth(model: PreTrainedModel, depth: int) -> None:
    """Refuse a path that the model's position embeddings cannot serve exactly.

    Args:
        model: the model.
        depth: tokens of the longest path.

    Raises:
        UnsupportedModelError: if rotary frequencies would depend on which sequences share the call.
    """
    config = model.config.get_text_config()
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kinds = [rope, *(value for value in rope.values() if isinstance(value, dict))]
    for parameters in kinds:
        kind = parameters.get("rope_type")
        if kind not in _LENGTH_DEPENDENT_ROPE:
            continue
        # transformers takes the first for "dynamic", and the other for "longrope".
        limit = config.max_position_embeddings
        if kind == "longrope":
            limit = (
                parameters.get("original_max_position_embeddings")
                or getattr(config, "original_max_position_embeddings", None)
                or limit
            )
        # At the limit itself frequencies of an earlier, longer call would stay.
        if depth >= limit:
            raise UnsupportedModelError(
                f"{type(model).__name__} has {kind!r} rotary embeddings, whose frequencies change "
                f"for sequences of {limit} tokens and more; a tree that is {depth} tokens deep "
                "would mix both kinds: keep its sequences within that length"
            )
