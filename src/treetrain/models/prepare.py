"""Preparing a Hugging Face causal model for packed trees, and giving it back as it was.

Nothing global is patched and no weight is touched: the model's attention implementation is
switched to one registered under a name of ours, which hands plain calls to the implementation it
replaced.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from treetrain.attention.names import check_backend
from treetrain.errors import RandomModelError, UnsupportedModelError, check_type
from treetrain.models.adapters import (
    adapters_draw,
    check_adapter_rates,
    find_idle,
    read_adapters,
)
from treetrain.models.attached import Attached, check_attached, read_attached, remove_pre_hook
from treetrain.models.before_head import BeforeHead, find_before_head
from treetrain.models.dense_mask import MASK, check_all_attend, check_reach, make_dense_mask
from treetrain.models.guards import (
    check_dropouts,
    check_embeddings,
    check_model,
    check_neighbours,
    check_shared_states,
    check_wrappers,
    find_dropouts,
    refuse_tree_call,
)
from treetrain.models.head import Head, check_leaves, find_head
from treetrain.models.hooks import (
    REGISTERED_NAMES,
    Layer,
    TreeCall,
    TreeLostError,
    make_sentinel,
    register_attention,
)
from treetrain.models.implementation import (
    find_implementations,
    restore_implementations,
)
from treetrain.models.positions import (
    check_alibi,
    check_depth,
    check_offset_tokens,
    check_temperature,
    find_position_offset,
    takes_argument,
)
from treetrain.models.probe import probe_layers
from treetrain.models.quantised import check_quantised
from treetrain.models.score import find_output_layer, find_score
from treetrain.models.self_check import (
    calm,
    check_on_tree,
    draws_at_random,
    large_logits,
    make_check_sequences,
    uncompiled,
)
from treetrain.models.text_call import find_called, find_decoder
from treetrain.models.wrappers import check_same_logits, unwrap_model, warn_where_uncompiled
from treetrain.packing.packed_tree import PackedTree, pack_tree
from treetrain.tree.build import build_prefix_tree

_ATTRIBUTE = "_treetrain_prepared"
#: Preparing registers names with transformers, whose registry all threads share.
_PREPARING = threading.RLock()


class PreparedModel:
    """A model that computes packed trees; made by `prepare`.

    Each argument is kept as an attribute.

    Args:
        model: the transformers model itself, out of any wrapper, usable as before.
        decoder: the part of it that returns hidden states.
        before_head: the way of its hidden states to the head.
        head: the map from hidden states to logits, or to values.
        position_offset: what is added to depth positions.
        layers: what each attention module computes; empty for a model that takes trees as one dense
            mask.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        decoder: nn.Module,
        *,
        before_head: BeforeHead,
        head: Head,
        position_offset: int,
        layers: dict[nn.Module, Layer],
    ) -> None:
        self.model = model
        self.decoder = decoder
        self.before_head = before_head
        self.head = head
        self.position_offset = position_offset
        self.layers = layers
        self._settings = _read_settings(model)
        self._attached = self._read_attached()
        self._random_in_training: dict[Hashable, bool] = {}
        self._heads_checked = {read_adapters(model)}
        self._originals: list[tuple[object, str | None]] | None = None

    def __repr__(self) -> str:
        name = type(self.model).__name__
        if not self.layers:
            return f"PreparedModel({name}, one dense mask)"
        backends = " and ".join(self.backends)
        return f"PreparedModel({name}, {len(self.layers)} attention layers, {backends})"

    @property
    def backends(self) -> list[str]:
        """Names of the attention backends in use, sorted; "mask" for one dense mask."""
        return sorted({layer.backend for layer in self.layers.values()}) or [MASK]

    @property
    def active(self) -> bool:
        """Whether the model computes trees now: prepared and not undone."""
        return self._originals is not None

    def activate(self) -> None:
        """Switch the model to tree attention; does nothing where it is already."""
        if self.active:
            return
        self._originals = find_implementations(self.model)
        original = self.model.config.get_text_config()._attn_implementation
        assert original is not None
        self._implementation = original
        if self.layers:
            self._implementation = REGISTERED_NAMES[original]
            self.model.set_attn_implementation(self._implementation)
        self.model.register_forward_pre_hook(refuse_tree_call, with_kwargs=True)
        setattr(self.model, _ATTRIBUTE, self)

    def undo(self) -> None:
        """Give the model back as it was; does nothing the second time."""
        if self._originals is None:
            return
        # What was chosen since stays chosen.
        ours = REGISTERED_NAMES.values()
        restore_implementations(
            [
                (config, name)
                for config, name in self._originals
                if getattr(config, "_attn_implementation", None) in ours
            ]
        )
        self._originals = None
        remove_pre_hook(self.model, refuse_tree_call)
        delattr(self.model, _ATTRIBUTE)

    def _check_unchanged(self) -> None:
        check_wrappers(self.model)
        implementation = self.model.config.get_text_config()._attn_implementation
        if implementation != self._implementation:
            raise ValueError(
                f"the model's attention implementation was set to {implementation!r} after "
                "prepare(model); call prepare(model) again"
            )
        if find_output_layer(self.model, self.head) is not self.head.layer:
            raise ValueError("the model's output layer was replaced; call prepare(model) again")
        if (settings := _read_settings(self.model)) != self._settings:
            changed = [name for name in settings if settings[name] != self._settings[name]]
            raise ValueError(f"config.{changed[0]} was changed; call prepare(model) again")
        check_attached(self._attached, self._read_attached())
        check_embeddings(self.decoder)

    def _read_attached(self) -> Attached:
        parts = {"decoder": self.decoder, "output layer": self.head.layer}
        if self.before_head.module is not None:
            parts["module before the output layer"] = self.before_head.module
        return read_attached(parts, self.layers)

    def _check_head(self, hidden: Tensor) -> None:
        """Look again for parameters outside the output layer where other adapters are on."""
        state = read_adapters(self.model)
        if torch.is_grad_enabled() and state not in self._heads_checked:
            check_leaves(self.model, self.head, hidden[:1])
            self._heads_checked.add(state)

    def _check_not_random(self) -> None:
        idle = find_idle(self.model)
        check_dropouts([named for named in find_dropouts(self.model) if named[1] not in idle])
        check_adapter_rates(self.model)
        # With other adapters switched on it is another model.
        state = read_adapters(self.model)
        if state not in self._random_in_training:
            tokens = torch.tensor(make_check_sequences(self.model)[:1], device=self.model.device)
            with uncompiled(self.model):
                self._random_in_training[state] = draws_at_random(self.decoder, tokens) or (
                    adapters_draw(self.model, lambda: self.model(input_ids=tokens, use_cache=False))
                )
        if self._random_in_training[state]:
            raise RandomModelError(
                f"{type(self.model).__name__} draws at random in training (a dropout rate or a "
                "noise in its config or an adapter's); a shared token cannot be drawn differently "
                "for each sequence",
                "set the rate to 0 and call prepare(model) again, or call model.eval()",
            )

    @contextmanager
    def undone(self) -> Iterator[None]:
        """Give the model back as it was for a while, for a baseline.

        Yields:
            Nothing.
        """
        was_active = self.active
        self.undo()
        try:
            yield
        finally:
            if was_active:
                self.activate()

    def hidden_states(self, packed: PackedTree) -> Tensor:
        """Compute the hidden states of every packed token, as the head receives them.

        Args:
            packed: the packed tree, on the model's device.

        Returns:
            Hidden states, [T, C], dtype of the model.
        """
        hidden = self.decoder_states(packed)
        if packed.num_tokens:
            hidden = self.before_head(hidden)
            self._check_head(hidden)
        return hidden

    def decoder_states(self, packed: PackedTree) -> Tensor:
        """Compute the hidden states of every packed token, as the decoder returns them.

        Most models' heads receive the same.

        Args:
            packed: the packed tree, on the model's device.

        Returns:
            Hidden states, [T, C], dtype of the model.

        Raises:
            ValueError: if the model was undone, was changed after it was prepared, or has no such
                token id.
            UnsupportedModelError: if a layer did not see the tree, if the model draws at random in
                training, or if a position embedding cannot serve the tree's depth.
        """  # noqa: DOC503 (the checks raise UnsupportedModelError)
        check_type("packed", packed, PackedTree, "a PackedTree, as batch.packed is one")
        if not self.active:
            raise ValueError("the model was given back by undo(); call prepare(model) again")
        embedding = self.model.get_input_embeddings()
        if packed.num_tokens == 0:
            return embedding(packed.tokens)[0]
        self._check_unchanged()
        vocabulary = self.model.config.get_text_config().vocab_size
        if (largest := int(packed.tree.tokens.max())) >= vocabulary:
            raise ValueError(
                f"token ids must be below the model's vocabulary of {vocabulary}, got {largest}; "
                "is it the model's own tokenizer?"
            )
        if self.decoder.training:
            self._check_not_random()
            check_shared_states(self.decoder)
        check_depth(self.model, int(packed.tree.depth_positions.max()) + 1)
        check_temperature(self.model, self.layers, packed.num_tokens)
        if self.position_offset:
            check_offset_tokens(self.model, packed)
        return self._run_decoder(packed)

    def _run_decoder(self, packed: PackedTree) -> Tensor:
        positions = packed.depth_positions + self.position_offset
        if self.layers:
            call = TreeCall(packed, self.layers)
            output = self.decoder(
                input_ids=packed.tokens,
                attention_mask=make_sentinel(packed.device),
                position_ids=positions,
                use_cache=False,
                prefix_tree=call,
            )
            call.check_complete()
        else:
            check_reach(self.model, packed.num_tokens)
            named = {"position_ids": positions, "use_cache": False}
            output = self.decoder(
                input_ids=packed.tokens,
                attention_mask=make_dense_mask(packed, self.model.dtype),
                **{name: it for name, it in named.items() if takes_argument(self.decoder, name)},
            )
        return output[0][0]


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
    if isinstance(before := getattr(model, _ATTRIBUTE, None), PreparedModel):
        before.undo()
    check_model(model)
    assert isinstance(model, PreTrainedModel)
    check_wrappers(model)
    check_backend(backend)
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
        make = partial(
            PreparedModel,
            model,
            decoder,
            before_head=before_head,
            head=head,
            position_offset=find_position_offset(decoder, tokens),
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
    except UnsupportedModelError as error:
        if lost is None:
            raise
        raise UnsupportedModelError(f"{lost}; as one dense mask: {error}") from error
    return by_mask


def find_prepared(model: nn.Module) -> PreparedModel:
    """Find the handle of a prepared model.

    Args:
        model: a model that `prepare` was called on, or one that wraps it.

    Returns:
        Its handle.

    Raises:
        ValueError: if `prepare` was not called, or undone.
    """
    check_type("model", model, nn.Module, "a prepared transformers model itself, not its handle")
    model = unwrap_model(model)
    prepared = getattr(model, _ATTRIBUTE, None)
    if not isinstance(prepared, PreparedModel):
        raise ValueError(
            f"model must be prepared, got a plain {type(model).__name__}; call "
            "treetrain.prepare(model) first"
        )
    return prepared


def _read_settings(model: PreTrainedModel) -> dict[str, object]:
    """Config values that `prepare` has acted on."""
    config = model.config.get_text_config()
    names = ("sliding_window", "attention_chunk_size", "layer_types", "final_logit_softcapping")
    names += ("logit_scale", "logits_scaling", "is_causal")
    return {name: copy.copy(getattr(config, name, None)) for name in names}
