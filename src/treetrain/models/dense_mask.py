"""The slower way by which a tree reaches a model's attention: one dense 4-D mask for all layers.

For models whose layers hand no keywords down to their attention. One mask serves a model only if
all its layers attend with the same one, over all tokens of a path; memory grows with the square of
the tree.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from treetrain.attention.reference import find_visibility
from treetrain.errors import UnsupportedModelError
from treetrain.packing.packed_tree import PackedTree

#: Config values that limit how far back something looks.
_LIMIT = re.compile(
    r"(?!\w*(layers|experts|heads|moe|group|num_\w*blocks|n_blocks))"
    r"\w*(window|chunk|block|topk|top_k|span|local|lookback|context|reach)"
)
#: What a forward pass may run into that takes masks of another kind.
_MASK_ERRORS = (
    RuntimeError,
    ValueError,
    TypeError,
    IndexError,
    AttributeError,
    AssertionError,
)
_FUSED = F.scaled_dot_product_attention
_SOFTMAX = (F.softmax, torch.softmax, Tensor.softmax)


def make_dense_mask(packed: PackedTree, dtype: torch.dtype) -> Tensor:
    """Make the additive mask of a tree.

    Args:
        packed: the packed tree.
        dtype: dtype of the model.

    Returns:
        0 where a token may read another and the lowest value of `dtype` elsewhere, [1, 1, T, T].
    """
    name = ("mask", dtype)
    if name not in packed.plans:
        mask = torch.zeros(1, 1, packed.num_tokens, packed.num_tokens, dtype=dtype)
        mask = mask.to(packed.device)
        packed.plans[name] = mask.masked_fill_(~find_visibility(packed), torch.finfo(dtype).min)
    return packed.plans[name]


def find_limit(model: PreTrainedModel) -> tuple[str, int] | None:
    """Find the smallest size in a model's config that could limit how far back something looks.

    Args:
        model: the model.

    Returns:
        Its name and the size, in tokens; None if the config names none.
    """
    sizes = [
        (one, name)
        for name, value in model.config.get_text_config().to_dict().items()
        for one in (value if isinstance(value, list | tuple) else [value])
        if _LIMIT.match(name) and isinstance(one, int) and not isinstance(one, bool) and one > 0
    ]
    return (min(sizes)[1], min(sizes)[0]) if sizes else None


def check_reach(model: PreTrainedModel, tokens: int) -> None:
    """Refuse a tree on which a window, a chunk or a choice of tokens could bite.

    A model without keyword transport may apply one in packed order, which no mask undoes.

    Args:
        model: the model.
        tokens: packed tokens of the call.

    Raises:
        UnsupportedModelError: if the config names one that is shorter than the tree.
    """
    limit = find_limit(model)
    if limit is not None and limit[1] < tokens:
        raise UnsupportedModelError(
            f"{type(model).__name__} has {limit[0]}={limit[1]} and takes trees as one dense mask, "
            f"which cannot say what that does to a tree of {tokens} tokens; pack trees of at most "
            f"{limit[1]} tokens (a token budget), or train it on separate sequences"
        )


class AttentionCount(TorchFunctionMode):
    """Counts attention over all tokens of a call: softmax or fused, with a mask or without.

    Args:
        tokens: number of tokens of the call; none of the model's sizes.
    """

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.count = 0
        self._shape = (tokens, tokens)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call the function, and count it if it attends."""
        if func is _FUSED:
            self.count += (args[0].shape[-2], args[1].shape[-2]) == self._shape
        elif func in _SOFTMAX and args:
            self.count += tuple(args[0].shape[-2:]) == self._shape
        return func(*args, **(kwargs or {}))


def check_all_attend(model: PreTrainedModel, decoder: nn.Module, packed: PackedTree) -> None:
    """Refuse a model that takes no 4-D mask, or some of whose layers do not attend.

    Args:
        model: the model, in eval mode.
        decoder: the part that returns hidden states.
        packed: a small tree.

    Raises:
        UnsupportedModelError: if it fails on the mask, or has layers of another kind.
    """
    mask = make_dense_mask(packed, model.dtype)
    try:
        with torch.no_grad(), AttentionCount(packed.num_tokens) as attention:
            decoder(input_ids=packed.tokens, attention_mask=mask, use_cache=False)
    except _MASK_ERRORS as error:
        raise UnsupportedModelError(
            f"{type(decoder).__name__} takes no mask of shape [1, 1, T, T] "
            f"({type(error).__name__}: {error!s:.120}); train it on separate sequences"
        ) from error
    layers = model.config.get_text_config().num_hidden_layers
    if attention.count < layers:
        raise UnsupportedModelError(
            f"only {attention.count} of the {layers} layers of {type(model).__name__} attend over "
            f"just the {packed.num_tokens} tokens of the call; others (recurrent, convolution, "
            "sparse, or with tokens that the model adds) would run from one branch into the next; "
            "train it on separate sequences"
        )
