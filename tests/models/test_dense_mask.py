"""Models without keyword transport, through one dense mask, against each sequence alone."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.models.baseline import check_equal, gradients, logits_alone, logits_on_tree
from torch import Tensor

from treetrain.errors import UnsupportedModelError
from treetrain.models.prepare import prepare
from treetrain.testing.models import make_tiny_model
from treetrain.testing.trees import tree_family


@pytest.mark.parametrize("tree", ["uneven", "comb", "equal_sequences"])
@pytest.mark.parametrize("model_type", ["nemotron", "stablelm", "falcon", "gpt_neox_japanese"])
def test_logits_and_all_gradients_are_those_of_each_sequence_alone(
    model_type: str, tree: str
) -> None:
    sequences = tree_family()[tree]
    model = make_tiny_model(model_type)
    alone = logits_alone(model, sequences)
    expected = gradients(model, alone)
    prepared = prepare(model)
    assert prepared.backends == ["mask"]
    assert "one dense mask" in repr(prepared)
    ours = logits_on_tree(prepared, sequences)
    check_equal(ours, alone, gradients(model, ours), expected)


def test_a_model_with_keywords_takes_the_mask_only_when_told() -> None:
    sequences = tree_family()["uneven"]
    model = make_tiny_model("llama")
    alone = logits_alone(model, sequences)
    expected = gradients(model, alone)
    assert prepare(model).backends == ["slices"]
    prepared = prepare(model, "mask")
    assert prepared.backends == ["mask"]
    ours = logits_on_tree(prepared, sequences)
    check_equal(ours, alone, gradients(model, ours), expected)


@pytest.mark.parametrize("backend", ["slices", "reference"])
def test_a_named_backend_does_not_become_the_mask(backend: str) -> None:
    with pytest.raises(UnsupportedModelError, match=r"drops keywords.*backend='auto' or 'mask'"):
        prepare(make_tiny_model("nemotron"), backend)


def test_a_window_that_one_mask_cannot_say_is_refused() -> None:
    """The layers of mistral have a window of 4, gpt_neo counts its own in packed order."""
    with pytest.raises(UnsupportedModelError, match="sliding_window=4"):
        prepare(make_tiny_model("mistral"), "mask")
    with pytest.raises(UnsupportedModelError, match="window_size=4"):
        prepare(make_tiny_model("gpt_neo"))


@pytest.mark.parametrize("setting", [{"attention_window": [4, 4]}, {"local_span": 4}])
def test_a_limit_of_another_name_is_seen(setting: dict[str, object]) -> None:
    prepared = prepare(make_tiny_model("nemotron"))
    prepared.model.config.update(setting)
    with pytest.raises(UnsupportedModelError, match=next(iter(setting))):
        logits_on_tree(prepared, tree_family()["uneven"])


def test_layers_that_do_not_attend_are_counted() -> None:
    with pytest.raises(UnsupportedModelError, match="as one dense mask: only 0 of the 4 layers"):
        prepare(make_tiny_model("rwkv"))
    with pytest.raises(UnsupportedModelError, match="as one dense mask: only 2 of the 4 layers"):
        prepare(make_tiny_model("minimax"))


def test_the_mask_is_made_once_a_tree_and_checkpointing_changes_no_gradient() -> None:
    sequences = tree_family()["uneven"]
    model = make_tiny_model("falcon")
    alone = logits_alone(model, sequences)
    expected = gradients(model, alone)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    prepared = prepare(model.train())
    ours = logits_on_tree(prepared, sequences)
    check_equal(ours, alone, gradients(model, ours), expected)


def test_float64_is_as_alone_and_bfloat16_no_further_from_it_than_each_sequence_alone() -> None:
    sequences = tree_family()["uneven"]
    model = make_tiny_model("nemotron")
    narrow = copy.deepcopy(model).bfloat16()
    # The truth is that of the rounded weights.
    truth = logits_alone(copy.deepcopy(narrow).double(), sequences)
    ours = logits_on_tree(prepare(copy.deepcopy(narrow).double()), sequences)
    largest = max(float(logits.abs().max()) for logits in truth)
    for one, other in zip(ours, truth, strict=True):
        # transformers computes norms in float32 whatever the dtype.
        assert float((one - other).detach().abs().max()) <= 1e-6 * largest

    def error(logits: list[Tensor]) -> float:
        pairs = zip(logits, truth, strict=True)
        return float(torch.cat([(a.double() - b).flatten() for a, b in pairs]).square().mean())

    alone = error(logits_alone(narrow, sequences))
    assert error(logits_on_tree(prepare(narrow), sequences)) ** 0.5 <= 1.1 * alone**0.5


@pytest.mark.parametrize("window", [8, 100])
def test_a_window_that_no_config_names_shows_on_a_longer_tree(
    window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts in packed order, inside the attention."""
    model = make_tiny_model("nemotron")
    attend = F.scaled_dot_product_attention

    def windowed(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any, **options: Any) -> Any:
        index = torch.arange(query.shape[2])
        near = index[:, None] - index[None, :] < window
        causal = near & (index[:, None] >= index[None, :])
        hidden = torch.zeros(causal.shape).masked_fill(~causal, -1e9)
        if attn_mask is not None:
            hidden = hidden + (
                torch.zeros_like(hidden).masked_fill(~attn_mask, -1e9)
                if attn_mask.dtype == torch.bool
                else attn_mask
            )
        options.pop("is_causal", None)
        return attend(query, key, value, attn_mask=hidden.expand(1, 1, -1, -1), **options)

    prepare(model, "mask").undo()
    monkeypatch.setattr(F, "scaled_dot_product_attention", windowed)
    with pytest.raises(UnsupportedModelError, match="other logits on a tree"):
        prepare(model, "mask")
