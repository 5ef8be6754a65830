"""Preparing a Hugging Face causal model for packed trees, and giving it back as it was.

Nothing global is patched and no weight is touched: the model's attention implementation is
switched to one registered under a name of ours, which hands plain calls to the implementation it
replaced.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from treetrain.errors import RandomModelError, check_type
from treetrain.models.adapters import (
    adapters_draw,
    check_adapter_rates,
    find_idle,
    read_adapters,
)
from treetrain.models.attached import check_attached, read_attached
from treetrain.models.guards import (
    check_convolutions,
    check_depth,
    check_dropouts,
    check_embeddings,
    check_layers,
    check_model,
    check_shared_states,
    check_wrappers,
    find_decoder,
    find_dropouts,
)
from treetrain.models.head import Head, check_leaves, find_head
from treetrain.models.hooks import (
    REGISTERED_NAMES,
    Layer,
    TreeCall,
    make_sentinel,
    register_attention,
)
from treetrain.models.implementation import (
    find_implementations,
    restore_implementations,
)
from treetrain.models.probe import probe_layers
from treetrain.models.quantised import check_quantised
from treetrain.models.self_check import (
    calm,
    check_on_tree,
    draws_at_random,
    large_logits,
    make_check_sequences,
    uncompiled,
)
from treetrain.models.wrappers import check_same_logits, unwrap_model, warn_where_uncompiled
from treetrain.packing.packed_tree import PackedTree

_ATTRIBUTE = "_treetrain_prepared"
#: Preparing registers names with transformers, whose registry all threads share.
_PREPARING = threading.RLock()


class PreparedModel:
    """A model that computes packed trees; made by `prepare`.

    Each argument is kept as an attribute.

    Args:
        model: the transformers model itself, out of any wrapper, usable as before.
        decoder: the part of it that returns hidden states.
        head: the map from hidden states to logits.
        layers: what each attention module computes.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        decoder: nn.Module,
        *,
        head: Head,
        layers: dict[nn.Module, Layer],
    ) -> None:
        self.model = model
        self.decoder = decoder
        self.head = head
        self.layers = layers
        self._settings = _read_settings(model)
        self._attached = read_attached(decoder, head.layer, layers)
        self._random_in_training: dict[Hashable, bool] = {}
        self._heads_checked = {read_adapters(model)}
        self._originals: list[tuple[object, str | None]] | None = None

    def __repr__(self) -> str:
        backends = sorted({layer.backend for layer in self.layers.values()})
        return (
            f"PreparedModel({type(self.model).__name__}, {len(self.layers)} attention layers, "
            f"{' and '.join(backends)})"
        )

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
        self.model.set_attn_implementation(REGISTERED_NAMES[original])
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
        delattr(self.model, _ATTRIBUTE)

    def _check_unchanged(self) -> None:
        check_wrappers(self.model)
        implementation = self.model.config.get_text_config()._attn_implementation
        if implementation not in REGISTERED_NAMES.values():
            raise ValueError(
                f"the model's attention implementation was set to {implementation!r} after "
                "prepare(model); call prepare(model) again"
            )
        if self.model.get_output_embeddings() is not self.head.layer:
            raise ValueError("the model's output layer was replaced; call prepare(model) again")
        if (settings := _read_settings(self.model)) != self._settings:
            changed = [name for name in settings if settings[name] != self._settings[name]]
            raise ValueError(f"config.{changed[0]} was changed; call prepare(model) again")
        check_attached(self._attached, read_attached(self.decoder, self.head.layer, self.layers))
        check_embeddings(self.decoder)

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
        call = TreeCall(packed, self.layers)
        output = self.decoder(
            input_ids=packed.tokens,
            attention_mask=make_sentinel(packed.device),
            position_ids=packed.depth_positions,
            use_cache=False,
            prefix_tree=call,
        )
        call.check_complete()
        self._check_head(output[0][0])
        return output[0][0]


def prepare(model: nn.Module, backend: str = "auto") -> PreparedModel:
    """Prepare a Hugging Face causal model for packed trees.

    Plain calls (evaluation, padded batches, generate) stay what they were. The model is checked on
    a tree of a few tokens against its own plain calls, so that a model which would be wrong is
    refused here.

    Args:
        model: a causal language model with attention implementation "sdpa" or "eager", by itself or
            in wrappers of peft and `torch.compile`; it is prepared for all of them.
        backend: attention backend by name, "slices" or "reference"; "auto" takes for each layer the
            first that supports it.

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
    register_attention()
    decoder = find_decoder(model)
    warn_where_uncompiled(wrapper, model, decoder)
    with calm(wrapper), uncompiled(wrapper):
        sequences = make_check_sequences(model)
        tokens = torch.tensor(sequences[0], device=model.device)[None]
        implementation = model.config.get_text_config()._attn_implementation
        assert implementation is not None
        layers = probe_layers(
            model, decoder, tokens, implementation=implementation, backend=backend
        )
        check_layers(model, len(layers))
        check_convolutions(decoder)
        check_embeddings(decoder)
        check_quantised(model, tokens)
        check_same_logits(wrapper, model, tokens)
        head = find_head(model, *large_logits(model, decoder, tokens))
        prepared = PreparedModel(model, decoder, head=head, layers=layers)
        check_on_tree(prepared, sequences)
    prepared.activate()
    return prepared


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
