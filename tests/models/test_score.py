"""Which classification models are prepared, and which are refused by what they do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.models.baseline import logits_alone, logits_on_tree
from torch import Tensor, nn
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    BertConfig,
    BertForSequenceClassification,
    LlamaForSequenceClassification,
    PreTrainedModel,
)

from treetrain.errors import UnsupportedModelError
from treetrain.losses.values import sequence_values
from treetrain.models.prepare import prepare
from treetrain.models.score import ScoreHead
from treetrain.packing.batch import pack
from treetrain.testing.models import make_tiny_model
from treetrain.testing.trees import worked_example


def make_model(auto: Any = AutoModelForSequenceClassification, **values: Any) -> PreTrainedModel:
    return make_tiny_model("llama", **{"auto": auto, "num_labels": 3, **values})


def make_subclass(kind: type[PreTrainedModel]) -> PreTrainedModel:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return kind(make_model().config).eval()


@pytest.mark.parametrize(
    ("family", "auto", "name", "per_sequence"),
    [
        ("llama", AutoModelForSequenceClassification, "score", True),
        ("gpt2", AutoModelForSequenceClassification, "score", True),
        ("llama", AutoModelForTokenClassification, "score", False),
        ("gpt2", AutoModelForTokenClassification, "classifier", False),
    ],
)
def test_the_layer_and_where_its_values_are_taken_are_found(
    family: str, auto: Any, name: str, per_sequence: bool
) -> None:
    model = make_tiny_model(family, auto=auto, num_labels=3)
    head = prepare(model).head
    assert isinstance(head, ScoreHead)
    assert (head.name, head.per_sequence) == (name, per_sequence)
    assert head.layer is getattr(model, name)


def test_a_language_model_s_head_is_no_score() -> None:
    assert not isinstance(prepare(make_tiny_model("llama")).head, ScoreHead)


def test_plain_calls_stay_what_they_were_and_undo_gives_the_model_back() -> None:
    model = make_model()
    tokens = torch.tensor([[5, 6, 7, 8], [5, 9, 0, 0]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    before = model(input_ids=tokens, attention_mask=mask).logits
    prepared = prepare(model)
    assert torch.equal(model(input_ids=tokens, attention_mask=mask).logits, before)
    implementation = model.config._attn_implementation
    prepared.undo()
    assert model.config._attn_implementation != implementation
    assert torch.equal(model(input_ids=tokens, attention_mask=mask).logits, before)


class TakesFirst(LlamaForSequenceClassification):
    def forward(self, input_ids: Any = None, **keywords: Any) -> Any:  # pyright: ignore
        output = super().forward(input_ids, **keywords)
        hidden = self.model(input_ids, use_cache=False)[0]
        output.logits = self.score(hidden)[:, 0]
        return output


class TakesMean(LlamaForSequenceClassification):
    def forward(self, input_ids: Any = None, **keywords: Any) -> Any:  # pyright: ignore
        output = super().forward(input_ids, **keywords)
        output.logits = self.score(self.model(input_ids, use_cache=False)[0]).mean(1)
        return output


class TakesEndOfText(LlamaForSequenceClassification):
    """The value at the first end-of-text token, or the last token where there is none."""

    def forward(self, input_ids: Any = None, **keywords: Any) -> Any:  # pyright: ignore
        output = super().forward(input_ids, **keywords)
        ends = (input_ids == self.config.eos_token_id).int()
        place = torch.where(ends.any(1), ends.argmax(1), input_ids.shape[1] - 1)
        values = self.score(self.model(input_ids, use_cache=False)[0])
        output.logits = values[torch.arange(len(place)), place]
        return output


class Caps(LlamaForSequenceClassification):
    def forward(self, input_ids: Any = None, **keywords: Any) -> Any:  # pyright: ignore
        output = super().forward(input_ids, **keywords)
        output.logits = output.logits.tanh()
        return output


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (TakesFirst, "TakesFirst takes its value at place 0 of 6 tokens"),
        (TakesMean, "TakesMean gives values .* that its score does not give there"),
        (TakesEndOfText, "TakesEndOfText takes its value at place 1 of 4 with id 2"),
        (Caps, "Caps gives values .* that its score does not give there"),
    ],
)
def test_a_model_that_takes_its_value_elsewhere_is_refused(kind: Any, said: str) -> None:
    with pytest.raises(UnsupportedModelError, match=said):
        prepare(make_subclass(kind))


def test_a_pooler_of_the_first_token_is_refused() -> None:
    config = BertConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        is_decoder=True,
        num_labels=3,
    )
    with pytest.raises(UnsupportedModelError, match=r"something else .*got shape \[1, 32\]"):
        prepare(BertForSequenceClassification(config).eval())


def test_an_encoder_is_refused_by_its_pooler() -> None:
    config = BertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_labels=3
    )
    with pytest.raises(UnsupportedModelError, match="such as a pooler's output"):
        prepare(BertForSequenceClassification(config).eval())


class TwoLayers(LlamaForSequenceClassification):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.dense = nn.Linear(32, 32)

    def forward(self, input_ids: Any = None, **keywords: Any) -> Any:  # pyright: ignore
        output = super().forward(input_ids, **keywords)
        hidden = self.model(input_ids, use_cache=False)[0]
        output.logits = self.score(self.dense(hidden))[:, -1]
        return output


def test_parameters_between_decoder_and_layer_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="beside its decoder in dense, score"):
        prepare(make_subclass(TwoLayers))


class MixesTokens(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return super().forward(input - input.mean(-2, keepdim=True))


class PoolsTokens(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return super().forward(input).mean(-2)


@pytest.mark.parametrize("layer", [MixesTokens, PoolsTokens])
def test_a_layer_that_mixes_tokens_is_refused(layer: type[nn.Linear]) -> None:
    model = make_model(AutoModelForTokenClassification)
    model.score = layer(32, 3)
    with pytest.raises(UnsupportedModelError, match="it mixes tokens"):
        prepare(model)


def test_outputs_that_are_no_values_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="LlamaForQuestionAnswering gives no logits"):
        prepare(make_model(AutoModelForQuestionAnswering))


def test_a_layer_put_in_place_after_preparing_is_noticed() -> None:
    model = make_model()
    prepare(model)
    model.score = nn.Linear(32, 3, bias=False)
    with pytest.raises(ValueError, match="output layer was replaced"):
        sequence_values(model, pack(worked_example()))
    prepare(model)
    sequence_values(model, pack(worked_example()))


def test_hooks_of_the_layer_run_on_trees() -> None:
    model = make_model(AutoModelForTokenClassification)
    model.score.register_forward_pre_hook(lambda module, inputs: (inputs[0].clamp(-1, 1),))
    model.score.register_forward_hook(lambda module, inputs, output: output.tanh())
    alone = logits_alone(model, worked_example())
    ours = logits_on_tree(prepare(model), worked_example())
    for one, other in zip(ours, alone, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("ids", [[2, 7], None])
def test_lists_of_end_ids_and_missing_ids_are_fine(ids: Any) -> None:
    model = make_model()
    model.config.eos_token_id = ids
    head = prepare(model).head
    assert isinstance(head, ScoreHead)
    assert head.per_sequence
