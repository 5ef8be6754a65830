from __future__ import annotations

import pytest
import torch

from treetrain.data.sample import Sample
from treetrain.losses.sft import sft_loss
from treetrain.models.prepare import prepare
from treetrain.packing.batch import pack
from treetrain.testing.models import make_tiny_model
from treetrain.testing.trees import tree_family
from treetrain.training.config import TreeConfig
from treetrain.training.evaluation import evaluate_loss
from treetrain.training.rows import make_rows

SAMPLES = [
    Sample(tokens, [0.5] * len(tokens), group=number % 3, trajectory=number % 4)
    for number, tokens in enumerate(tree_family()["uneven"])
]


@pytest.mark.parametrize("reduction", ["token_mean", "path_mean", "trajectory_mean", "sum", 7.0])
@pytest.mark.parametrize("max_tokens", [1000, 25, 9])
def test_the_loss_is_that_of_all_sequences_however_rows_are_cut(reduction, max_tokens):
    model = make_tiny_model("llama").train()
    prepare(model)
    rows = make_rows(SAMPLES, TreeConfig.model_validate({"max_tokens": max_tokens}), seed=None)
    found = evaluate_loss(model, rows.batches, reduction, partitions=rows.partitions)
    expected = float(sft_loss(model, pack(SAMPLES), reduction).detach())
    assert found == pytest.approx(expected, rel=1e-5)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_evaluation_moves_no_random_state():
    model = make_tiny_model("llama")
    prepare(model)
    before = torch.get_rng_state()
    evaluate_loss(model, [pack(SAMPLES)], "sum", partitions={})
    assert torch.equal(torch.get_rng_state(), before)
