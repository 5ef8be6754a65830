"""What the attention layers of a model compute, found by watching one plain call of a few tokens.

Windows and chunks are read off the mask functions that transformers builds for each layer,
evaluated far beyond the few tokens, so that neither the model's type nor its config's spelling
matters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from treetrain.attention.api import choose_backend
from treetrain.errors import UnsupportedModelError
from treetrain.models.hooks import Layer, TreeLostError, find_original, name_module
from treetrain.models.implementation import using_implementation

_PROBE_NAME = "treetrain_probe"
#: Positions at which mask functions are evaluated; windows and chunks beyond bind no tree of this
#: depth.
_FAR = 1 << 20


def probe_layers(
    model: PreTrainedModel, decoder: nn.Module, tokens: Tensor, *, backend: str
) -> dict[nn.Module, Layer]:
    """Find the attention modules of a model, and the window, chunk and backend of each.

    Args:
        model: the model, in eval mode, with its own attention implementation.
        decoder: the part that returns hidden states.
        tokens: a few token ids, [1, n] int64.
        backend: name of an attention backend, or "auto".

    Returns:
        What each attention module computes, in the order they were called.

    Raises:
        TreeLostError: if some layers do not attend through the interface.
        UnsupportedModelError: if a layer's mask is not causal with at most a window and a chunk,
            if a module attends in two ways, or if the model's own implementation leaves out a cap
            of scores.
    """  # noqa: DOC502 (reading masks raises)
    name = type(model).__name__
    if not model._can_set_attn_implementation():
        raise TreeLostError(f"{name} does not attend through transformers' AttentionInterface")
    implementation = model.config.get_text_config()._attn_implementation
    assert implementation is not None
    seen: dict[nn.Module, list[Tensor | None]] = {}
    masks: dict[int, Callable[..., Any]] = {}
    build_mask = AttentionMaskInterface()[implementation]

    def watch_mask(*args: Any, **keywords: Any) -> Tensor | None:
        # A skipped mask is None and could not be told apart from any other.
        mask = build_mask(*args, **{**keywords, "allow_is_causal_skip": False})
        if mask is not None:
            masks[id(mask)] = keywords["mask_function"]
        return mask

    def watch_attention(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **keywords: Any,
    ) -> Any:
        if keywords.get("softcap") is not None and implementation == "sdpa":
            raise UnsupportedModelError(
                f"{name_module(module)} caps its scores at {keywords['softcap']}, which 'sdpa' "
                "leaves out; call model.set_attn_implementation('eager') before prepare(model)"
            )
        seen.setdefault(module, []).append(attention_mask)
        return find_original(implementation, module)(
            module, query, key, value, attention_mask, **keywords
        )

    AttentionInterface.register(_PROBE_NAME, watch_attention)
    AttentionMaskInterface.register(_PROBE_NAME, watch_mask)
    try:
        with using_implementation(model, _PROBE_NAME), torch.no_grad():
            decoder(input_ids=tokens, use_cache=False)
    finally:
        del AttentionInterface._global_mapping[_PROBE_NAME]
        del AttentionMaskInterface._global_mapping[_PROBE_NAME]

    count = model.config.get_text_config().num_hidden_layers
    if len(seen) < count:
        raise TreeLostError(
            f"only {len(seen)} of the {count} layers of {name} attend through transformers' "
            "AttentionInterface; layers of another kind (recurrent, convolution) would run from "
            "one branch into the next, and layers that read images are not run on text"
        )
    layers: dict[nn.Module, Layer] = {}
    chosen = choose_backend(backend)
    for module, several in seen.items():
        for mask in several:
            if mask is None or id(mask) not in masks:
                raise TreeLostError(
                    f"{name_module(module)} attends with a mask that transformers' mask functions "
                    "did not build, so that its visibility is unknown"
                )
            layer = Layer(chosen, *_read_mask(masks[id(mask)], module))
            # A module may attend several times in one forward pass, but in one way.
            if layers.setdefault(module, layer) != layer:
                raise UnsupportedModelError(
                    f"{name_module(module)} attends in two ways in one forward pass, as {layer} "
                    f"and as {layers[module]}; train it on separate sequences"
                )
    return layers


def _read_mask(
    mask_function: Callable[..., Any], module: nn.Module
) -> tuple[int | None, int | None]:
    """Read window and chunk off a mask function, and make sure that nothing else is in it."""
    zero = torch.zeros((), dtype=torch.int64)

    def row(position: int) -> Tensor:
        """Visibility of positions 0 .. position + 1 for the query at `position`."""
        keys = torch.arange(position + 2)
        try:
            visible = mask_function(zero, zero, torch.tensor(position), keys)
        except IndexError as error:
            raise UnsupportedModelError(
                f"{name_module(module)} has a mask that looks up each token of the call (pictures "
                "or blocks read in both directions?), so that its visibility on a tree is unknown; "
                "train it on separate sequences"
            ) from error
        return torch.as_tensor(visible).expand(keys.shape)

    far = row(_FAR - 1)
    reach = int(far.flip(0)[1:].long().cumprod(0).sum())
    window = chunk = None
    if reach < _FAR:
        # A window reaches as far from every position; a chunk starts anew at its own multiples.
        if int(row(_FAR - 2).flip(0)[1:].long().cumprod(0).sum()) == reach:
            window = reach
        else:
            config = getattr(module, "config", None)
            chunk = getattr(config, "attention_chunk_size", None)
    for position in (0, 1, 2, 7, 100, 4095, 8192, 100_003, _FAR - 1):
        keys = torch.arange(position + 2)
        expected = keys <= position
        if window is not None:
            expected &= position - keys < window
        if chunk is not None:
            expected &= keys // chunk == position // chunk
        if not torch.equal(row(position), expected):
            raise UnsupportedModelError(
                f"{name_module(module)} has a mask that is not causal with at most a window or a "
                "chunk (a prefix or a block read in both directions?); it cannot be trained on "
                "trees"
            )
    return window, chunk
