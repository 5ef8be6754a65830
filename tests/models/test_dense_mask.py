"""Models without keyword transport, through one dense mask, against each sequence alone."""

from __future__ import annotations

import pytest
import torch
from tests.models.baseline import check_equal, gradients, logits_alone, logits_on_tree

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


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_are_prepared(dtype: torch.dtype) -> None:
    prepared = prepare(make_tiny_model("nemotron").to(dtype))
    assert logits_on_tree(prepared, tree_family()["uneven"])[0].isfinite().all()
