"""Preparing a Hugging Face causal model for packed trees, and giving it back as it was.

Nothing global is patched and no weight is touched: the model's attention implementation is
switched to one registered under a name of ours, which hands plain calls to the implementation it
replaced.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from treetrain.attention.names import MASK, check_backend
from treetrain.errors import UnsupportedModelError
from treetrain.models.before_head import BeforeHead, find_before_head
from treetrain.models.dense_mask import check_all_attend, find_limit
from treetrain.models.guards import (
    check_embeddings,
    check_model,
    check_neighbours,
    check_wrappers,
)
from treetrain.models.head import Head, find_head
from treetrain.models.hooks import (
    TreeLostError,
    register_attention,
)
from treetrain.models.positions import (
    check_alibi,
    find_positions,
)
from treetrain.models.prepared import ATTRIBUTE, PreparedModel
from treetrain.models.probe import probe_layers
from treetrain.models.quantised import check_quantised
from treetrain.models.score import find_score
from treetrain.models.self_check import (
    calm,
    check_on_tree,
    check_parameters,
    large_logits,
    make_check_sequences,
    make_long_sequences,
    uncompiled,
)
from treetrain.models.text_call import find_called, find_decoder
from treetrain.models.wrappers import check_same_logits, unwrap_model, warn_where_uncompiled
from treetrain.packing.packed_tree import pack_tree
from treetrain.tree.build import build_prefix_tree

#: Tokens of the tree on which a dense mask is looked at far back.
LONG_TREE = 256
#: Preparing registers names with transformers, whose registry all threads share.
_PREPARING = threading.RLock()


def prepare(model: nn.Module, backend: str = "auto") -> PreparedModel:
    """Prepare a Hugging Face causal model for packed trees.

    Plain calls (evaluation, padded batches, generate) stay what they were. The model is checked on
    a tree of a few tokens against its own plain calls, so that a model which would be wrong is
    refused here.

    Args:
        model: a causal language model, or a causal classification model (of sequences or tokens),
            with attention implementation "sdpa" or "eager", by itself or in wrappers of peft and
            `torch.compile`; it is prepared for all of them.
        backend: attention backend by name: "slices", "reference", or "mask", one dense mask for all
            layers, whose memory grows with the square of the tree; "auto" takes for each layer the
            first that supports it, and the mask for a model that hands its layers no keywords. The
            handle names what was taken.

    Returns:
        The handle, with `undo()`. Preparing a prepared model with the same backend checks it anew.

    Raises:
        TypeError: if `model` is no Hugging Face model.
        ValueError: if no backend has that name.
        UnsupportedModelError: if the model, or a layer under the named backend, cannot be computed
            exactly on a tree.

    Example:
        >>> from treetrain.testing.models import make_tiny_model
        >>> model = make_tiny_model("llama")
        >>> handle = prepare(model)
        >>> handle
        PreparedModel(LlamaForCausalLM, 4 attention layers, slices)
        >>> handle.undo()
    """  # noqa: DOC502 (the checks raise)
    with _PREPARING:
        return _prepare(model, backend)


def _prepare(wrapper: nn.Module, backend: str) -> PreparedModel:
    model = unwrap_model(wrapper)
    check_backend(backend)
    if isinstance(before := getattr(model, ATTRIBUTE, None), PreparedModel):
        before.undo()
    check_model(model)
    assert isinstance(model, PreTrainedModel)
    check_wrappers(model)
    register_attention()
    with calm(wrapper), uncompiled(wrapper):
        sequences = make_check_sequences(model)
        tokens = torch.tensor(sequences[0], device=model.device)[None]
        called = find_called(model, tokens)
        decoder = find_decoder(model, called)
        warn_where_uncompiled(wrapper, model, decoder)
        check_neighbours(decoder, called)
        check_embeddings(decoder)
        check_alibi(model, decoder)
        check_quantised(model, tokens)
        check_same_logits(wrapper, model, tokens)
        before_head, head = _find_head(model, decoder, tokens)
        check_parameters(model, (decoder, before_head.module, head.layer), tokens)
        make = partial(
            PreparedModel,
            model,
            decoder,
            before_head=before_head,
            head=head,
            positions=find_positions(decoder, tokens),
        )
        prepared = _find_way(make, backend, sequences)
    prepared.activate()
    return prepared


def _find_head(
    model: PreTrainedModel, decoder: nn.Module, tokens: Tensor
) -> tuple[BeforeHead, Head]:
    """Find what follows the decoder: the layer of a classification model, or the way to logits."""
    if (score := find_score(model, decoder, tokens)) is not None:
        return BeforeHead(score.layer), score
    before_head = find_before_head(model, decoder, tokens)
    hidden, logits = large_logits(model, before_head.layer, tokens)
    return before_head, find_head(model, before_head.layer, hidden, logits=logits)


def _long_tree(prepared: PreparedModel) -> int:
    """Tokens of a tree that a model takes as one dense mask and its positions serve."""
    limit = find_limit(prepared.model)
    positions = prepared.positions
    return min(
        LONG_TREE,
        LONG_TREE if limit is None else max(limit[1], 4),
        LONG_TREE if positions.count is None else positions.count - positions.offset,
    )


def _find_way(
    make: Callable[..., PreparedModel], backend: str, sequences: list[list[int]]
) -> PreparedModel:
    """Let the tree travel as a keyword, or, where keywords get lost, as one dense mask."""
    lost: TreeLostError | None = None
    by_mask = make(layers={})
    model, decoder = by_mask.model, by_mask.decoder
    if backend != MASK:
        tokens = torch.tensor(sequences[0], device=model.device)[None]
        try:
            prepared = make(layers=probe_layers(model, decoder, tokens, backend=backend))
            check_on_tree(prepared, sequences)
            return prepared
        except TreeLostError as error:
            if backend != "auto":
                raise UnsupportedModelError(
                    f"{error}; use backend='auto' or 'mask', one dense mask for all layers"
                ) from error
            lost = error
    try:
        check_all_attend(model, decoder, pack_tree(build_prefix_tree(sequences), model.device))
        check_on_tree(by_mask, sequences)
        # What a config does not name shows on longer paths.
        check_on_tree(by_mask, make_long_sequences(model, _long_tree(by_mask)))
    except UnsupportedModelError as error:
        if lost is None:
            raise
        raise UnsupportedModelError(f"{lost}; as one dense mask: {error}") from error
    return by_mask
