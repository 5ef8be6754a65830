"""What a model does beside its decoder and its head, found before and while it is trained."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.models.baseline import check_equal, gradients, logits_alone, logits_on_tree
from torch import Tensor, nn
from transformers import LlamaForCausalLM
from transformers.modeling_outputs import CausalLMOutput

from treetrain.errors import RandomModelError, UnsupportedModelError
from treetrain.losses.sft import sft_loss
from treetrain.models.prepare import prepare
from treetrain.packing.batch import pack
from treetrain.testing.models import make_tiny_model
from treetrain.testing.trees import worked_example


class Between(LlamaForCausalLM):
    """Does something between decoder and output layer, or after it."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.extra = nn.Linear(32, 32, bias=False)
        self.gain = nn.Parameter(torch.ones(()))

    def before(self, hidden: Tensor) -> Tensor:
        return hidden

    def after(self, logits: Tensor) -> Tensor:
        return logits

    def forward(self, input_ids: Any = None, **keywords: Any) -> Any:  # pyright: ignore
        hidden = self.model(input_ids=input_ids, use_cache=False)[0]
        return CausalLMOutput(logits=self.after(self.lm_head(self.before(hidden))))


class ZeroAdapter(Between):
    def before(self, hidden: Tensor) -> Tensor:
        return hidden + self.extra(hidden)


class LearnedFactor(Between):
    def after(self, logits: Tensor) -> Tensor:
        return logits * self.gain


class DropsBefore(Between):
    def before(self, hidden: Tensor) -> Tensor:
        return F.dropout(hidden, 0.5, self.training)


class FactorInTraining(Between):
    def after(self, logits: Tensor) -> Tensor:
        return logits * 2 if self.training else logits


class Shrunk(Between):
    def after(self, logits: Tensor) -> Tensor:
        return logits * 0.95


def make_between(kind: type[Between]) -> Between:
    model = kind(make_tiny_model("llama").config)
    nn.init.zeros_(model.extra.weight)
    return model.eval()


BATCH = pack(worked_example())


@pytest.mark.parametrize(("kind", "name"), [(ZeroAdapter, "extra.weight"), (LearnedFactor, "gain")])
@pytest.mark.parametrize("frozen", [False, True])
def test_parameters_that_hide_as_nothing_or_a_factor_are_named(
    kind: type[Between], name: str, frozen: bool
) -> None:
    model = make_between(kind).requires_grad_(not frozen)
    with pytest.raises(UnsupportedModelError, match=f"hang on {name}"):
        prepare(model)
    assert all(value.requires_grad is not frozen for value in model.parameters())


def test_dropout_between_decoder_and_head_is_refused_in_training() -> None:
    model = make_between(DropsBefore)
    prepare(model)
    sft_loss(model, BATCH, "sum")
    model.train()
    model.model.eval()
    with pytest.raises(RandomModelError, match="draws at random"):
        sft_loss(model, BATCH, "sum")


def test_what_a_model_does_to_logits_in_training_only_is_refused() -> None:
    model = make_between(FactorInTraining)
    prepare(model)
    with pytest.raises(UnsupportedModelError, match="other logits in training"):
        sft_loss(model.train(), BATCH, "sum")


def test_one_layer_in_training_is_training() -> None:
    model = make_tiny_model("gpt2").eval()
    prepare(model)
    last = model.transformer.h[-1].mlp.dropout
    last.p = 0.1
    last.train()
    with pytest.raises(RandomModelError, match=r"would drop 0\.1"):
        sft_loss(model, BATCH, "sum")


@pytest.mark.parametrize("backend", ["slices", "mask"])
def test_a_rate_that_is_raised_after_the_first_call_is_seen(backend: str) -> None:
    model = make_tiny_model("llama").train()
    prepare(model, backend)
    sft_loss(model, BATCH, "sum")
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    with pytest.raises(RandomModelError, match="draws at random"):
        sft_loss(model, BATCH, "sum")


def test_a_factor_near_1_is_not_lost_in_half_precision() -> None:
    prepared = prepare(make_between(Shrunk).bfloat16())
    assert prepared.head.scale == pytest.approx(0.95, abs=1e-3)


def test_a_factor_before_the_head_is_measured_in_half_precision() -> None:
    prepared = prepare(make_tiny_model("minicpm3", dim_model_base=9).bfloat16())
    assert prepared.before_head.scale == pytest.approx(9 / 32, rel=5e-4)


def test_parts_that_are_replaced_after_preparing_are_noticed() -> None:
    model = make_tiny_model("bert")
    prepare(model)
    model.cls.predictions.transform.dense = nn.Linear(32, 32)
    with pytest.raises(ValueError, match="were replaced"):
        sft_loss(model, BATCH, "sum")
    model = make_tiny_model("llama")
    prepare(model)
    model.model = make_tiny_model("llama", seed=1).model
    with pytest.raises(ValueError, match="were replaced"):
        sft_loss(model, BATCH, "sum")


def test_paths_longer_than_a_model_s_positions_are_named() -> None:
    model = make_tiny_model("gpt2", n_positions=8, max_position_embeddings=8)
    sequences = [[5, 6, 7, 8, 9, 10, 11, 12, 13], [5, 6, 7]]
    with pytest.raises(ValueError, match="at most 8 tokens long"):
        logits_on_tree(prepare(model), sequences)


def test_a_wrong_backend_leaves_a_prepared_model_as_it_was() -> None:
    model = make_tiny_model("llama")
    alone = logits_alone(model, worked_example())
    expected = gradients(model, alone)
    prepared = prepare(model)
    with pytest.raises(ValueError, match="backend must be"):
        prepare(model, "MASK")
    ours = logits_on_tree(prepared, worked_example())
    check_equal(ours, alone, gradients(model, ours), expected)
