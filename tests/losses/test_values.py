"""Values on trees against the untouched model, or model and head, on each sequence alone."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.models.baseline import check_equal, gradients
from torch import Tensor, nn
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedModel,
)

from treetrain.data.sample import Sample
from treetrain.errors import RandomModelError, UnsupportedModelError
from treetrain.losses.logprobs import sequence_logprobs
from treetrain.losses.policy import policy_loss
from treetrain.losses.sft import sft_loss
from treetrain.losses.values import sequence_values, token_values
from treetrain.models.prepare import prepare
from treetrain.packing.batch import pack
from treetrain.testing.models import make_tiny_model
from treetrain.testing.trees import random_forest, tree_family
from treetrain.verification.verify import verify
from treetrain.verification.widened import widen

FAMILIES = ("llama", "qwen3", "gpt2", "mistral")
TREES = {
    "forest": random_forest(np.random.default_rng(1), roots=3, node_tokens=7),
    **{name: tree_family()[name] for name in ("uneven", "equal_sequences", "chain", "comb")},
}
UNEVEN = TREES["uneven"]


def make_reward_model(family: str, labels: int = 3, **values: Any) -> PreTrainedModel:
    auto = AutoModelForSequenceClassification
    return make_tiny_model(family, auto=auto, num_labels=labels, **values)


def make_token_model(family: str, **values: Any) -> PreTrainedModel:
    values = {"num_labels": 3, "classifier_dropout": 0.0, **values}
    return make_tiny_model(family, auto=AutoModelForTokenClassification, **values)


def outputs_alone(model: PreTrainedModel, sequences: Sequence[list[int]]) -> list[Tensor]:
    """The model's own output for each sequence by itself, through a model nobody has prepared."""
    assert not model.config._attn_implementation.startswith("treetrain")
    return [model(input_ids=torch.tensor([row]), use_cache=False).logits[0] for row in sequences]


def head_alone(
    model: PreTrainedModel, head: nn.Module, sequences: Sequence[list[int]]
) -> list[Tensor]:
    """A head on the last hidden states of each sequence by itself, [L, labels] each."""
    assert not model.config._attn_implementation.startswith("treetrain")
    found = []
    for row in sequences:
        output = model(input_ids=torch.tensor([row]), use_cache=False, output_hidden_states=True)
        found.append(head(output.hidden_states[-1])[0])
    return found


def distance(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """Root of the sum of squared differences of all gradients."""
    return sum(float((one[name] - other[name]).square().sum()) for name in other) ** 0.5


class ValueHead(nn.Module):
    """As trl's wrapper of causal models has one, under the name v_head."""

    def __init__(self, size: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.summary = nn.Linear(size, 1)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.summary(self.dropout(hidden).to(self.summary.weight.dtype))


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("family", FAMILIES)
def test_sequence_values_and_all_gradients_are_the_model_s_own(family: str, tree: str) -> None:
    sequences = TREES[tree]
    model = make_reward_model(family)
    alone = outputs_alone(model, sequences)
    expected = gradients(model, alone)
    prepare(model)
    ours = sequence_values(model, pack(sequences))
    assert [row.shape for row in ours] == [(3,)] * len(sequences)
    check_equal(ours, alone, gradients(model, ours), expected)


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("family", FAMILIES)
def test_token_values_and_all_gradients_are_the_model_s_own(family: str, tree: str) -> None:
    sequences = TREES[tree]
    model = make_token_model(family)
    alone = outputs_alone(model, sequences)
    expected = gradients(model, alone)
    prepare(model)
    ours = token_values(model, pack(sequences))
    assert [row.shape for row in ours] == [(len(row), 3) for row in sequences]
    check_equal(ours, alone, gradients(model, ours), expected)


def test_a_token_model_s_sequence_value_is_that_of_the_last_token() -> None:
    model = make_token_model("gpt2")
    alone = [row[-1] for row in outputs_alone(model, UNEVEN)]
    expected = gradients(model, alone)
    prepare(model)
    ours = sequence_values(model, pack(UNEVEN))
    check_equal(ours, alone, gradients(model, ours), expected)


def test_a_sequence_model_s_token_values_are_its_score_s_at_every_token() -> None:
    model = make_reward_model("llama")
    alone = head_alone(model, model.score, UNEVEN)
    expected = gradients(model, alone)
    prepare(model)
    ours = token_values(model, pack(UNEVEN))
    check_equal(ours, alone, gradients(model, ours), expected)


@pytest.mark.parametrize("head", [nn.Linear(32, 2), ValueHead(32).eval(), ValueHead(32, 0.0)])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_critic_handed_over_gets_its_own_values_and_gradients(
    family: str, head: nn.Module
) -> None:
    sequences = TREES["forest"]
    model = make_tiny_model(family)
    both: Any = nn.ModuleDict({"model": model, "head": head})
    alone = head_alone(model, head, sequences)
    expected = gradients(both, alone)
    ends = [row[-1] for row in alone]
    expected_at_ends = gradients(both, [row[-1] for row in head_alone(model, head, sequences)])
    prepare(model)
    batch = pack(sequences)
    ours = token_values(model, batch, head)
    check_equal(ours, alone, gradients(both, ours), expected)
    ours = sequence_values(model, batch, head)
    check_equal(ours, ends, gradients(both, ours), expected_at_ends)


def test_float64_values_and_gradients_are_equal_to_its_own_limit() -> None:
    for family in FAMILIES:
        model = make_reward_model(family, dtype=torch.float64)
        with widen(model):
            alone = outputs_alone(model, UNEVEN)
            expected = gradients(model, alone)
            prepare(model)
            ours = sequence_values(model, pack(UNEVEN))
            found = gradients(model, ours)
        largest = max(float(one.abs().max()) for one in expected.values())
        for one, other in zip(ours, alone, strict=True):
            assert float((one - other).detach().abs().max()) <= 1e-10 * float(
                other.detach().abs().max()
            )
        for name, one in found.items():
            assert float((one - expected[name]).abs().max()) <= 1e-10 * largest, (family, name)


def test_bfloat16_is_no_further_from_float64_than_each_sequence_alone() -> None:
    """In half of twelve models at least: in a single one rounding favours either by chance."""
    ratios = []
    for seed in range(12):
        model = make_reward_model("llama", dtype=torch.bfloat16, seed=seed)
        twin = copy.deepcopy(model).double()
        truth = gradients(twin, outputs_alone(twin, UNEVEN))
        alone = outputs_alone(model, UNEVEN)
        expected = gradients(model, alone)
        prepare(model)
        ours = sequence_values(model, pack(UNEVEN))
        assert ours[0].dtype == alone[0].dtype == torch.bfloat16
        ratios.append(distance(gradients(model, ours), truth) / distance(expected, truth))
    assert np.median(ratios) <= 1.1


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_gradient_checkpointing_in_training_changes_no_gradient(
    family: str, reentrant: bool
) -> None:
    model = make_reward_model(family)
    alone = outputs_alone(model, UNEVEN)
    expected = gradients(model, alone)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    model.train()
    prepare(model)
    ours = sequence_values(model, pack(UNEVEN))
    check_equal(ours, alone, gradients(model, ours), expected)


def test_values_come_in_the_caller_s_order_whatever_the_groups() -> None:
    model = make_reward_model("qwen3", labels=1)
    rows = [[1, 2, 3], [7, 8], [1, 2, 4, 5], [7, 8, 9], [1, 2, 3], [7, 8]]
    alone = outputs_alone(model, rows)
    prepare(model)
    ours = sequence_values(
        model, pack([Sample(row, group=place % 2) for place, row in enumerate(rows)])
    )
    for one, other in zip(ours, alone, strict=True):
        torch.testing.assert_close(
            one, other, rtol=0, atol=1e-5 * float(torch.cat(alone).detach().abs().max())
        )


def test_one_optimiser_step_gives_the_same_parameters() -> None:
    """Bradley-Terry on pairs, as reward models are trained."""
    rows = [[1, 2, 3, 4], [1, 2, 3, 5, 6], [1, 2, 7], [1, 2]]
    stepped: list[list[Tensor]] = []
    for on_tree in (False, True):
        model = make_reward_model("llama", labels=1)
        if on_tree:
            prepare(model)
            values = sequence_values(model, pack(rows))
        else:
            values = outputs_alone(model, rows)
        chosen, rejected = torch.cat(values[0::2]), torch.cat(values[1::2])
        (-F.logsigmoid(chosen - rejected).mean()).backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        stepped.append([parameter.detach() for parameter in model.parameters()])
    for one, other in zip(*stepped, strict=True):
        assert float((one - other).abs().max()) <= 1e-5 * float(other.abs().max())


@pytest.mark.parametrize("make", [make_reward_model, make_token_model])
def test_the_head_sees_each_distinct_end_once(make: Any) -> None:
    model = make("llama")
    rows: list[int] = []
    model.score.register_forward_pre_hook(lambda layer, inputs: rows.append(len(inputs[0])))
    prepare(model)
    rows.clear()
    sequence_values(model, pack([[1, 2, 3], [1, 2], [1, 2, 3], [1, 2, 3, 4, 5, 6], [1, 2], [7, 8]]))
    # Beside the four ends only looks at two rows, to see that the head works on each token.
    assert rows == [2, 2, 2, 2, 2, 4]


def test_what_comes_after_a_sequence_s_end_does_not_move_its_value() -> None:
    model = make_reward_model("mistral")
    prepare(model)
    one = sequence_values(model, pack([[1, 2, 3], [1, 2, 3, 4, 5, 6], [1, 2, 9]]))
    other = sequence_values(model, pack([[1, 2, 3], [1, 2, 3, 8, 5, 6], [1, 2, 7]]))
    torch.testing.assert_close(one[0], other[0], rtol=1e-5, atol=1e-6)
    assert not torch.allclose(one[1], other[1], atol=1e-3)


def test_an_empty_sequence_has_no_value_and_is_named() -> None:
    model = make_reward_model("llama")
    prepare(model)
    batch = pack([[4, 5], Sample([], source="data.jsonl:7"), [4, 6]])
    said = r"samples\[1\] \(data.jsonl:7\) must have a token, got an empty sequence"
    with pytest.raises(ValueError, match=said):
        sequence_values(model, batch)
    with pytest.raises(ValueError, match=r"samples\[0\] must have a token"):
        sequence_values(model, pack([[]]))


@pytest.mark.parametrize("make", [make_reward_model, make_token_model])
def test_an_empty_sequence_has_no_token_values(make: Any) -> None:
    model = make("llama")
    prepare(model)
    for sequences in ([[], [4, 5, 6], [], [4, 7]], [[], []]):
        values = token_values(model, pack(sequences))
        assert [list(one.shape) for one in values] == [[len(row), 3] for row in sequences]


PADDED = [[1, 2, 3, 0], [1, 2, 3], [1, 2, 3, 0, 0], [1, 2, 3, 0, 4]]


def test_a_sequence_that_ends_in_the_id_of_padding_is_refused_by_name() -> None:
    model = make_reward_model("llama")
    # The model by itself takes such a sequence's value at an earlier token.
    alone = outputs_alone(model, PADDED)
    torch.testing.assert_close(alone[0], alone[1])
    prepare(model)
    said = r"samples\[0\] must not end in id 0.*pad_token_id.*head=model.score"
    with pytest.raises(ValueError, match=said):
        sequence_values(model, pack(PADDED))
    model.config.pad_token_id = None
    sequence_values(model, pack(PADDED))


def test_the_layer_handed_over_gives_the_value_at_the_true_end() -> None:
    model = make_reward_model("llama")
    alone = [row[-1] for row in head_alone(model, model.score, PADDED)]
    expected = gradients(model, alone)
    prepare(model)
    ours = sequence_values(model, pack(PADDED), model.score)
    check_equal(ours, alone, gradients(model, ours), expected)
    assert not torch.allclose(ours[0], ours[1], atol=1e-3)


def test_the_id_of_padding_elsewhere_or_alone_is_a_token_like_others() -> None:
    model = make_reward_model("gpt2")
    sequences = [[0], [0, 5], [3, 0, 0, 4], [3, 0, 7]]
    alone = outputs_alone(model, sequences)
    expected = gradients(model, alone)
    prepare(model)
    ours = sequence_values(model, pack(sequences))
    check_equal(ours, alone, gradients(model, ours), expected)


def test_token_models_take_the_id_of_padding_anywhere() -> None:
    model = make_token_model("llama")
    alone = [row[-1] for row in outputs_alone(model, PADDED)]
    prepare(model)
    for one, other in zip(sequence_values(model, pack(PADDED)), alone, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_losses_over_tokens_and_verify_refuse_a_model_without_language_model_head() -> None:
    model = make_reward_model("llama")
    prepare(model)
    batch = pack(UNEVEN)
    said = "LlamaForSequenceClassification has no language-model head: its score.*sequence_values"
    with pytest.raises(UnsupportedModelError, match=said):
        sft_loss(model, batch, "sum")
    with pytest.raises(UnsupportedModelError, match=said):
        sequence_logprobs(model, batch)
    with pytest.raises(UnsupportedModelError, match=said):
        policy_loss(
            model,
            batch,
            "sum",
            objective="ppo",
            advantages=[1.0] * len(UNEVEN),
            old_logprobs="current",
            clip_low=0.2,
            clip_high=0.2,
        )
    with pytest.raises(UnsupportedModelError, match=r"verify compares log-prob.*sequence_values"):
        verify(model, UNEVEN)


@pytest.mark.parametrize("function", [sequence_values, token_values])
def test_a_language_model_needs_a_head_to_be_handed_over(function: Any) -> None:
    model = make_tiny_model("llama")
    prepare(model)
    batch = pack(UNEVEN)
    with pytest.raises(ValueError, match=r"head must be a module.*Linear\(hidden_size, 1\)"):
        function(model, batch)
    with pytest.raises(TypeError, match=r"head must be a module .*got function"):
        function(model, batch, lambda hidden: hidden)
    with pytest.raises(TypeError, match="batch must be a Batch"):
        function(model, UNEVEN, nn.Linear(32, 1))


@pytest.mark.parametrize("function", [sequence_values, token_values])
def test_dropout_in_a_head_in_training_is_refused(function: Any) -> None:
    model = make_tiny_model("llama")
    prepare(model)
    batch = pack(UNEVEN)
    head = ValueHead(32).train()
    with pytest.raises(RandomModelError, match=r"head.dropout would drop 0.1.*head.eval\(\)"):
        function(model, batch, head)
    function(model, batch, head.eval())

    class Drops(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:  # noqa: A002
            return super().forward(F.dropout(input, 0.5, self.training))

    head = Drops(32, 1)
    state = torch.get_rng_state()
    with pytest.raises(RandomModelError, match="head Drops draws at random"):
        function(model, batch, head)
    function(model, batch, head.eval())
    assert torch.equal(state, torch.get_rng_state())


def test_dropout_of_a_classification_model_in_training_is_refused() -> None:
    model = make_token_model("llama", classifier_dropout=0.1)
    prepare(model)
    batch = pack(UNEVEN)
    token_values(model, batch)
    # A frozen decoder in eval mode does not hide the dropout before the layer.
    model.dropout.train()
    with pytest.raises(RandomModelError, match=r"dropout would drop 0.1"):
        token_values(model, batch)
    model.train()
    with pytest.raises(RandomModelError, match=r"dropout would drop 0.1"):
        sequence_values(model, batch)


class Pools(nn.Module):
    """A head that knows no tokens, only their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 1)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.linear(hidden - hidden.mean(0))


@pytest.mark.parametrize(
    "head", [Pools(), nn.Sequential(nn.BatchNorm1d(32), nn.Linear(32, 1))], ids=["mean", "norm"]
)
def test_a_head_that_mixes_tokens_is_refused(head: nn.Module) -> None:
    model = make_tiny_model("llama")
    prepare(model)
    with pytest.raises(UnsupportedModelError, match=r"head \w+ mixes tokens"):
        sequence_values(model, pack(UNEVEN), head)


def test_a_head_that_gives_no_row_per_token_is_refused() -> None:
    class Sums(nn.Module):
        def forward(self, hidden: Tensor) -> Tensor:
            return hidden.sum()

    class Pair(nn.Module):
        def forward(self, hidden: Tensor) -> tuple[Tensor, None]:
            return hidden, None

    model = make_tiny_model("llama")
    prepare(model)
    batch = pack(UNEVEN)
    with pytest.raises(ValueError, match=r"one row per token .*\[2, 32\], got shape \[\]"):
        sequence_values(model, batch, Sums())
    with pytest.raises(ValueError, match="got tuple"):
        token_values(model, batch, Pair())


def test_a_head_may_give_a_number_per_token() -> None:
    model = make_tiny_model("llama")
    prepare(model)
    head = nn.Sequential(nn.Linear(32, 1), nn.Flatten(0))
    assert [one.shape for one in sequence_values(model, pack([[1, 2], [1, 3]]), head)] == [(), ()]


def test_autocast_keeps_the_head_s_gradients() -> None:
    model = make_reward_model("llama")
    prepare(model)
    with torch.autocast("cpu", torch.bfloat16):
        values = sequence_values(model, pack(UNEVEN))
    torch.cat(values).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert values[0].dtype == torch.bfloat16


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scan = nn.GRU(32, 8)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.scan(hidden)[0]


class SummedUp(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return super().forward(input.cumsum(0))


class Centred(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return super().forward(input - input.mean(0))


class Dropping(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return super().forward(nn.functional.dropout(input, 0.5, self.training))


@pytest.mark.parametrize(
    ("head", "zero"),
    [
        (Recurrent(), False),
        (SummedUp(32, 1), False),
        (SummedUp(32, 1), True),
        (Centred(32, 1), False),
        (Centred(32, 1), True),
    ],
)
def test_heads_in_which_tokens_reach_other_ones_are_refused(head: nn.Module, zero: bool) -> None:
    if zero:
        for parameter in head.parameters():
            nn.init.zeros_(parameter)
    model = make_tiny_model("llama")
    prepare(model)
    with pytest.raises(UnsupportedModelError, match="mixes tokens"):
        token_values(model, pack([[1, 2, 3], [1, 2, 4]]), head)


def test_dropout_that_weights_of_0_hide_is_refused() -> None:
    head = Dropping(32, 1)
    nn.init.zeros_(head.weight)
    model = make_tiny_model("llama")
    prepare(model)
    with pytest.raises(RandomModelError, match="draws at random"):
        token_values(model, pack([[1, 2, 3], [1, 2, 4]]), head)
    token_values(model, pack([[1, 2, 3], [1, 2, 4]]), head.eval())
