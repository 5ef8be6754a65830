"""Models and calls that trees cannot serve, refused by name before anything is computed."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from treetrain.errors import RandomModelError, UnsupportedModelError
from treetrain.models.hooks import REGISTERED_NAMES


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
    if getattr(config, "reorder_and_upcast_attn", False) and implementation == "eager":
        raise UnsupportedModelError(
            f"{name} has reorder_and_upcast_attn, an attention of its own; set it to False in its "
            "config"
        )


def check_hooks(model: nn.Module) -> None:
    """Refuse hooks of the model's own forward, which a tree call goes around.

    Args:
        model: the model, or a wrapper of it.

    Raises:
        UnsupportedModelError: if it has forward hooks.
    """
    name = type(model).__name__
    attached = [*model._forward_pre_hooks.values(), *model._forward_hooks.values()]
    if hooks := [hook for hook in attached if hook is not refuse_tree_call]:
        raise UnsupportedModelError(
            f"{name} has a forward hook ({_name_function(hooks[0])}), which a tree call would go "
            "around: it runs the decoder and the output layer, not the model's own forward; remove "
            "it, or register it on the decoder (model.base_model) or the output layer"
        )


def check_wrappers(model: nn.Module) -> None:
    """Refuse hooks and replacements of the model's own forward, which a tree call goes around.

    A tree call runs the decoder and the output layer with their hooks, never the model around
    them.

    Args:
        model: the model, or a wrapper of it.

    Raises:
        UnsupportedModelError: if it has forward hooks, or a forward that is not its class's own.
    """
    check_hooks(model)
    name = type(model).__name__
    forward = vars(model).get("forward")
    # A compiled forward computes what the one below it does.
    forward = getattr(forward, "_torchdynamo_orig_callable", forward)
    # Wrappers that were taken off may leave the class's forward without its decorators.
    own: list[Any] = [type(model).forward]
    while hasattr(own[-1], "__wrapped__"):
        own.append(own[-1].__wrapped__)
    if forward is not None and getattr(forward, "__func__", None) not in own:
        raise UnsupportedModelError(
            f"{name} has a forward of its own in place of its class's ({_name_function(forward)}), "
            "which a tree call would go around; take it off: del model.forward, or "
            "accelerator.unwrap_model(model, keep_fp32_wrapper=False) and accelerator.autocast() "
            "around the loss"
        )


def refuse_tree_call(module: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    """Refuse a tree in a call of the whole model; a pre-hook of prepared models.

    The whole model would shift labels in packed order, and fill a cache that no path goes on from.

    Args:
        module: the prepared model.
        args: its positional arguments.
        keywords: its keyword arguments.

    Raises:
        UnsupportedModelError: if a tree is among the keywords.
    """
    del args
    if keywords.get("prefix_tree") is None:
        return
    named = [name for name, value in keywords.items() if value is not None]
    with_these = [name for name in named if name not in ("prefix_tree", "input_ids")]
    raise UnsupportedModelError(
        f"{type(module).__name__} was called with prefix_tree and {with_these or 'nothing else'}; "
        "labels, caches, padding masks and positions of a plain call mean packed order there: use "
        "sft_loss, policy_loss or sequence_logprobs(model, batch), or the handle's hidden_states"
    )


def _name_function(function: Any) -> str:
    return getattr(function, "__qualname__", type(function).__name__)


def check_neighbours(decoder: nn.Module, called: list[nn.Module]) -> None:
    """Refuse a model in which tokens are mixed with, or chosen among, their packed neighbours.

    Args:
        decoder: the part that returns hidden states.
        called: the modules that run on text.

    Raises:
        UnsupportedModelError: if it holds a convolution over more than one token, or an indexer
            that picks the tokens to attend to.
    """
    running = set(called)
    for parent_name, parent in decoder.named_modules():
        # A fused kernel takes a convolution's weights and never calls it: its holder runs.
        for name, module in parent.named_children():
            if parent not in running and module not in running:
                continue
            place = f"{parent_name}.{name}".lstrip(".")
            if name == "indexer" or type(module).__name__.endswith("Indexer"):
                raise UnsupportedModelError(
                    f"{place} picks the highest-scored tokens to attend to, by packed order and "
                    "over all branches at once; train this model on separate sequences"
                )
            if isinstance(module, nn.Conv1d) and module.kernel_size[0] > 1:
                raise UnsupportedModelError(
                    f"{place} convolves {module.kernel_size[0]} neighbouring tokens, which would "
                    "mix one branch into the next; train this model on separate sequences"
                )


def check_embeddings(decoder: nn.Module) -> None:
    """Refuse embeddings whose gradients depend on how often a token is computed.

    Args:
        decoder: the part that returns hidden states.

    Raises:
        UnsupportedModelError: if one divides its gradients by a token's frequency in the call.
    """
    for name, module in decoder.named_modules():
        if getattr(module, "scale_grad_by_freq", False):
            raise UnsupportedModelError(
                f"{name} has scale_grad_by_freq=True, which divides gradients by how often a token "
                "stands in the call; a tree holds shared tokens once: set it to False"
            )


def find_dropouts(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """List the modules of a model that drop something: dropout, or whole layers.

    Args:
        model: the model.

    Returns:
        Pairs of qualified name and module.
    """
    return [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.modules.dropout._DropoutNd) or hasattr(module, "layerdrop")
    ]


def check_dropouts(dropouts: list[tuple[str, nn.Module]]) -> None:
    """Refuse a training call in which a dropout module is active.

    Args:
        dropouts: what `find_dropouts` returned.

    Raises:
        RandomModelError: if one would drop anything.
    """
    for name, module in dropouts:
        if module.training and getattr(module, "layerdrop", 0.0):
            raise RandomModelError(
                f"{name} would leave out whole layers at random (layerdrop is "
                f"{module.layerdrop}); a shared token cannot skip a layer for one sequence and not "
                "for another",
                f"set {name}.layerdrop = 0 and config.layerdrop = 0, or call model.eval()",
            )
        rate: Any = getattr(module, "p", 0.0)
        if module.training and rate > 0:
            raise RandomModelError(
                f"{name} would drop {rate} of its input; a shared token cannot be dropped "
                "differently for each sequence",
                "set the model's dropout rates to 0 in its config (an adapter's in the adapter's), "
                "or call model.eval()",
            )


def check_shared_states(decoder: nn.Module) -> None:
    """Refuse reentrant checkpointing of layers that read keys and values of another layer.

    Each layer is computed again alone and without a graph to the layer whose keys and values it
    reads, so that their gradients are lost, on trees as on separate sequences.

    Args:
        decoder: the part that returns hidden states, in training.

    Raises:
        UnsupportedModelError: if it is checkpointed so and shares keys and values.
    """
    if not torch.is_grad_enabled():
        return
    shares = any(getattr(module, "is_kv_shared_layer", False) for module in decoder.modules())
    if shares and any(map(_is_reentrant, decoder.modules())):
        raise UnsupportedModelError(
            f"{type(decoder).__name__} has layers that read the keys and values of an earlier "
            "layer, whose gradients reentrant checkpointing loses, on separate sequences too; call "
            "model.gradient_checkpointing_enable({'use_reentrant': False})"
        )


def _is_reentrant(module: nn.Module) -> bool:
    if not (getattr(module, "gradient_checkpointing", False) and module.training):
        return False
    function: Any = getattr(module, "_gradient_checkpointing_func", None)
    # torch's own default is True.
    return isinstance(function, partial) and function.keywords.get("use_reentrant", True)


def is_checkpointing(model: nn.Module) -> bool:
    """Whether a model computes activations again in its backward pass.

    Args:
        model: the model, in the mode that it shall run in.

    Returns:
        True where a layer does.
    """
    return any(
        getattr(module, "gradient_checkpointing", False) and module.training
        for module in model.modules()
    )
