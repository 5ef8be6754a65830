"""Positions that a model counts by itself, and what a tree needs in their place.

A tree call hands over depth positions. Some models expect them shifted, some look at the length of
the call, and some count packed order whatever they are given.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from treetrain.errors import UnsupportedModelError
from treetrain.packing.packed_tree import PackedTree

#: Rotary embeddings whose frequencies depend on the length of the longest sequence of the call.
_LENGTH_DEPENDENT_ROPE = frozenset({"dynamic", "longrope"})


def takes_argument(module: nn.Module, name: str) -> bool:
    """Say whether a module's forward has a parameter, by its name or among its keywords.

    Args:
        module: the module.
        name: name of the parameter.

    Returns:
        Whether it can be handed over.
    """
    parameters = inspect.signature(module.forward).parameters
    return name in parameters or any(
        parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()
    )


@dataclass(frozen=True)
class Positions:
    """How a model takes positions.

    Attributes:
        offset: what it adds to those that it counts itself, and not to those handed over.
        count: rows of its position embedding; None for one that has none, or was not found.
    """

    offset: int = 0
    count: int | None = None


def find_positions(decoder: nn.Module, tokens: Tensor) -> Positions:
    """Find how a model takes positions, by the ids that reach its embeddings.

    The roberta family starts at the padding id plus one. Its position embedding is watched in a
    call without positions and in one with them.

    Args:
        decoder: the part that returns hidden states, in eval mode.
        tokens: one sequence without a padding id, [1, n] int64.

    Returns:
        What has to be added to depth positions, and how many there are.
    """
    if not takes_argument(decoder, "position_ids"):
        return Positions()
    count = torch.arange(tokens.shape[1], device=tokens.device)
    with torch.no_grad():
        with _watch_embeddings(decoder) as seen_alone:
            decoder(input_ids=tokens, use_cache=False)
        with _watch_embeddings(decoder) as seen_given:
            decoder(input_ids=tokens, position_ids=count[None], use_cache=False)
    for module, alone in seen_alone.items():
        given = seen_given.get(module)
        if given is None or alone.shape != given.shape or alone.shape[-1] != len(count):
            continue
        if not alone.dtype.is_floating_point and bool((given == count).all()):
            shift = (alone - given).unique()
            if len(shift) == 1:
                return Positions(int(shift), module.num_embeddings)
    return Positions()


@contextmanager
def _watch_embeddings(decoder: nn.Module) -> Iterator[dict[nn.Embedding, Tensor]]:
    """Yields the ids that each embedding is called with, by module."""
    seen: dict[nn.Embedding, Tensor] = {}

    def watch(module: nn.Embedding, inputs: tuple[Any, ...], output: Any) -> None:
        del output
        if inputs and isinstance(inputs[0], Tensor):
            seen[module] = inputs[0].detach()

    embeddings = [module for module in decoder.modules() if isinstance(module, nn.Embedding)]
    hooks = [module.register_forward_hook(watch) for module in embeddings]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def check_positions(model: PreTrainedModel, positions: Positions, packed: PackedTree) -> None:
    """Refuse a tree that a model's position embedding cannot serve.

    Args:
        model: the model.
        positions: how it takes positions.
        packed: the packed tree.

    Raises:
        ValueError: if a path is longer than there are positions.
        UnsupportedModelError: if a token is the padding id of a model that gives it no position.
    """
    name = type(model).__name__
    depth = int(packed.tree.depth_positions.max()) + 1
    if positions.count is not None and depth + positions.offset > positions.count:
        raise ValueError(
            f"paths must be at most {positions.count - positions.offset} tokens long, which is how "
            f"many positions {name} has, got {depth}; leave out or cut longer sequences"
        )
    if not positions.offset:
        return
    # Counting starts one after the padding id.
    padding = positions.offset - 1
    places = (packed.tree.tokens[packed.ancestors :] == padding).nonzero()[0]
    if len(places):
        raise UnsupportedModelError(
            f"{name} gives its padding id {padding} no position of its own, so that tokens after "
            f"it stand elsewhere; packed token {places[0]} is one: leave padding out of sequences, "
            "by a mask where they come with it"
        )


def check_alibi(model: PreTrainedModel, decoder: nn.Module) -> None:
    """Refuse a model whose attention is biased by distance in packed order.

    Args:
        model: the model.
        decoder: the part that returns hidden states.

    Raises:
        UnsupportedModelError: if its forward builds ALiBi.
    """
    code = getattr(inspect.unwrap(type(decoder).forward), "__code__", None)
    builds = any("alibi" in name for name in getattr(code, "co_names", ()))
    config = model.config.get_text_config()
    if builds and getattr(config, "alibi", True):
        raise UnsupportedModelError(
            f"{type(model).__name__} biases attention by distance (ALiBi), which it counts in "
            "packed order; train it on separate sequences"
        )


def check_temperature(
    model: PreTrainedModel, attention: Iterable[nn.Module], packed: PackedTree
) -> None:
    """Refuse a call in which queries would be scaled by their place in packed order.

    Packed positions are counted in the row, and a sequence alone would count the row's ancestors
    too: both must stay below the place from which the scale differs from 1.

    Args:
        model: the model.
        attention: its attention modules.
        packed: the packed tree.

    Raises:
        UnsupportedModelError: if the row, or a path of its tree, is long enough for another scale.
    """
    depth = int(packed.tree.depth_positions.max()) + 1
    tokens = max(packed.num_tokens, depth)
    for module in attention:
        if not getattr(module, "attn_temperature_tuning", False) or getattr(module, "use_rope", 0):
            continue
        floor = getattr(module, "floor_scale", None)
        if floor is not None and tokens >= floor:
            raise UnsupportedModelError(
                f"{type(model).__name__} scales queries from packed position {int(floor)} on "
                f"(attn_temperature_tuning), and the tree has {tokens} tokens; pack smaller trees "
                "(a token budget below floor_scale, which no path exceeds), or train it on "
                "separate sequences"
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
