"""A model that computes packed trees: the handle that `prepare` gives.

What a tree call hands the model and what is looked at before each is here; how a model is taken
apart and checked beforehand is `prepare`'s affair.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from treetrain.attention.names import MASK
from treetrain.errors import RandomModelError, check_type
from treetrain.models.adapters import (
    adapters_draw,
    check_adapter_rates,
    find_idle,
    read_adapters,
    read_rates,
)
from treetrain.models.attached import remove_pre_hook
from treetrain.models.before_head import BeforeHead
from treetrain.models.dense_mask import check_reach, make_dense_mask
from treetrain.models.gateways import Gateways, check_gateways
from treetrain.models.guards import (
    check_dropouts,
    check_embeddings,
    check_shared_states,
    check_wrappers,
    find_dropouts,
    refuse_tree_call,
)
from treetrain.models.head import Head, check_leaves
from treetrain.models.hooks import (
    REGISTERED_NAMES,
    Layer,
    TreeCall,
    make_sentinel,
)
from treetrain.models.implementation import (
    find_implementations,
    restore_implementations,
)
from treetrain.models.positions import (
    Positions,
    check_depth,
    check_positions,
    check_temperature,
    takes_argument,
)
from treetrain.models.score import find_output_layer
from treetrain.models.self_check import (
    check_way_to_logits,
    draws_at_random,
    make_check_sequences,
    uncompiled,
)
from treetrain.models.snapshot import Snapshot, take_snapshot
from treetrain.models.wrappers import unwrap_model
from treetrain.packing.packed_tree import PackedTree

ATTRIBUTE = "_treetrain_prepared"


class PreparedModel:
    """A model that computes packed trees; made by `prepare`.

    Each argument is kept as an attribute.

    Args:
        model: the transformers model itself, out of any wrapper, usable as before.
        decoder: the part of it that returns hidden states.
        before_head: the way of its hidden states to the head.
        head: the map from hidden states to logits, or to values.
        positions: how the model takes positions.
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
        positions: Positions,
        layers: dict[nn.Module, Layer],
    ) -> None:
        self.model = model
        self.decoder = decoder
        self.before_head = before_head
        self.head = head
        self.positions = positions
        self.layers = layers
        self._snapshot = self._take_snapshot()
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
        setattr(self.model, ATTRIBUTE, self)

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
        delattr(self.model, ATTRIBUTE)

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
        self._snapshot.check(self._take_snapshot(), type(self.model).__name__)
        check_embeddings(self.decoder)

    def _take_snapshot(self) -> Snapshot:
        return take_snapshot(
            self.model, self.decoder, self.layers, head=self.head, before_head=self.before_head
        )

    def _check_head(self, hidden: Tensor) -> None:
        """Look again for parameters outside the output layer where other adapters are on."""
        state = read_adapters(self.model)
        if torch.is_grad_enabled() and state not in self._heads_checked:
            check_leaves(self.model, self.head, hidden[:1])
            self._heads_checked.add(state)

    def _check_training(self) -> None:
        """Refuse what a model does in training only: draw at random, or give other logits."""
        idle = find_idle(self.model)
        check_dropouts([named for named in find_dropouts(self.model) if named[1] not in idle])
        check_adapter_rates(self.model)
        # With other adapters switched on, or other rates, it is another model.
        state = (read_adapters(self.model), read_rates(self.model))
        if state not in self._random_in_training:
            tokens = torch.tensor(make_check_sequences(self.model)[:1], device=self.model.device)
            with uncompiled(self.model):
                self._random_in_training[state] = draws_at_random(self.model, tokens) or (
                    adapters_draw(self.model, lambda: self.model(input_ids=tokens, use_cache=False))
                )
                if not self._random_in_training[state]:
                    check_way_to_logits(self, tokens)
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

    def hidden_states(
        self,
        packed: PackedTree,
        gateways: Gateways | None = None,
        *,
        model_is_checked: bool = False,
    ) -> Tensor:
        """Compute the hidden states of every packed token, as the head receives them.

        Args:
            packed: the packed tree, on the model's device.
            gateways: as in `decoder_states`.
            model_is_checked: as in `decoder_states`.

        Returns:
            Hidden states, [T, C], dtype of the model.
        """
        hidden = self.decoder_states(packed, gateways, model_is_checked=model_is_checked)
        if packed.num_tokens:
            hidden = self.before_head(hidden)
            self._check_head(hidden)
        return hidden

    def decoder_states(
        self,
        packed: PackedTree,
        gateways: Gateways | None = None,
        *,
        model_is_checked: bool = False,
    ) -> Tensor:
        """Compute the hidden states of every packed token, as the decoder returns them.

        Most models' heads receive the same.

        Args:
            packed: the packed tree, on the model's device.
            gateways: for a partition, the gateway of each module of `layers`; None for a whole
                tree.
            model_is_checked: whether the caller called `check_model` for the step that this row is
                a part of.

        Returns:
            Hidden states, [T, C], dtype of the model.

        Raises:
            ValueError: if the model was undone, was changed after it was prepared, or has no such
                token id, or if a partition's gateways are missing.
            UnsupportedModelError: if a layer did not see the tree, if the model draws at random in
                training, if a position embedding cannot serve the tree's depth, or if the model
                cannot be computed in partitions.
        """  # noqa: DOC503 (the checks raise UnsupportedModelError)
        check_type("packed", packed, PackedTree, "a PackedTree, as batch.packed is one")
        if not self.active:
            raise ValueError("the model was given back by undo(); call prepare(model) again")
        check_gateways(self.model, self.layers, packed, gateways=gateways)
        embedding = self.model.get_input_embeddings()
        if packed.num_tokens == 0:
            return embedding(packed.tokens)[0]
        if not model_is_checked:
            self.check_model()
        self.check_row(packed)
        return self._run_decoder(packed, gateways)

    def check_model(self) -> None:
        """Look at what a step's rows have in common: the model's parts, settings and mode.

        Raises:
            ValueError: if the model was undone, or changed after it was prepared.
            UnsupportedModelError: if it draws at random in training.
        """  # noqa: DOC503 (the checks raise UnsupportedModelError)
        if not self.active:
            raise ValueError("the model was given back by undo(); call prepare(model) again")
        self._check_unchanged()
        if any(module.training for module in self.model.modules()):
            self._check_training()
            check_shared_states(self.decoder)

    def check_row(self, packed: PackedTree) -> None:
        """Look at what a row's own tokens and sizes ask of the model; nothing is computed.

        Args:
            packed: the packed tree, on any device.

        Raises:
            ValueError: if a token id is none of the model's, or a path has more tokens than the
                model has positions.
            UnsupportedModelError: if the row is longer or deeper than the model computes exactly.
        """  # noqa: DOC502, DOC503 (the checks raise)
        if packed.num_tokens == 0:
            return
        vocabulary = self.model.config.get_text_config().vocab_size
        if (largest := int(packed.tree.tokens[packed.ancestors :].max())) >= vocabulary:
            raise ValueError(
                f"token ids must be below the model's vocabulary of {vocabulary}, got {largest}; "
                "is it the model's own tokenizer?"
            )
        check_depth(self.model, int(packed.tree.depth_positions.max()) + 1)
        check_temperature(self.model, self.layers, packed)
        check_positions(self.model, self.positions, packed)
        if not self.layers:
            check_reach(self.model, packed.num_tokens)

    def _run_decoder(self, packed: PackedTree, gateways: Gateways | None) -> Tensor:
        positions = packed.depth_positions + self.positions.offset
        if self.layers:
            call = TreeCall(packed, self.layers, gateways)
            output = self.decoder(
                input_ids=packed.tokens,
                attention_mask=make_sentinel(packed.device),
                position_ids=positions,
                use_cache=False,
                prefix_tree=call,
            )
            call.running = False
            call.check_complete()
        else:
            named = {"position_ids": positions, "use_cache": False}
            output = self.decoder(
                input_ids=packed.tokens,
                attention_mask=make_dense_mask(packed, self.model.dtype),
                **{name: it for name, it in named.items() if takes_argument(self.decoder, name)},
            )
        return output[0][0]


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
    prepared = getattr(model, ATTRIBUTE, None)
    if not isinstance(prepared, PreparedModel):
        raise ValueError(
            f"model must be prepared, got a plain {type(model).__name__}; call "
            "treetrain.prepare(model) first"
        )
    return prepared
