"""What stands between decoder and output layer is found, computed and trained."""

from __future__ import annotations

import pytest
import torch
from tests.models.baseline import check_equal, gradients, logits_alone, logits_on_tree

from treetrain.models.before_head import find_factor
from treetrain.models.prepare import prepare
from treetrain.testing.models import make_tiny_model
from treetrain.testing.trees import tree_family


@pytest.mark.parametrize("model_type", ["bert", "roberta", "electra", "modernbert-decoder"])
def test_modules_before_the_output_layer_are_run_and_trained(model_type: str) -> None:
    sequences = [
        [token + 4 for token in sequence if token < 60] for sequence in tree_family()["uneven"]
    ]
    model = make_tiny_model(model_type)
    alone = logits_alone(model, sequences)
    expected = gradients(model, alone)
    prepared = prepare(model)
    assert prepared.before_head.module is not None
    ours = logits_on_tree(prepared, sequences)
    check_equal(ours, alone, gradients(model, ours), expected)
    assert not prepared.head.layer._forward_pre_hooks


def test_a_factor_before_the_output_layer_is_measured() -> None:
    sequences = tree_family()["uneven"]
    model = make_tiny_model("minicpm3", dim_model_base=8)
    alone = logits_alone(model, sequences)
    prepared = prepare(model)
    assert prepared.before_head.scale == pytest.approx(0.25)
    ours = logits_on_tree(prepared, sequences)
    check_equal(ours, alone, gradients(model, ours), gradients(model, alone))


def test_a_factor_is_one_number_or_none() -> None:
    values = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    assert find_factor(values, values * 0.3) == pytest.approx(0.3)
    assert find_factor(values, values * torch.tensor([1.0, 1.0, 1.0, 1.0, 1.1])) is None
    assert find_factor(values, values[:, :4]) is None
