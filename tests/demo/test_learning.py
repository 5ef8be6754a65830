from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from treetrain.data.sample import Sample
from treetrain.demo.learning import as_lines, make_optimizers, rate_at, train
from treetrain.demo.plans import PLANS
from treetrain.models.prepare import prepare
from treetrain.testing.models import make_tiny_model

PLAN = replace(PLANS["small"], steps=20, errands_per_step=2)
ERRANDS = [[Sample([1, 2, 3, 4, 5], group=n), Sample([1, 2, 3, 6, 7], group=n)] for n in range(40)]


@pytest.mark.parametrize("matrix_rate", [0.03, None])
def test_training_lowers_the_loss_and_moves_every_parameter(matrix_rate: float | None) -> None:
    model = make_tiny_model("llama")
    before = {name: value.clone() for name, value in model.named_parameters()}
    prepare(model)
    steps = list(train(model, ERRANDS, replace(PLAN, matrix_learning_rate=matrix_rate)))
    assert len(steps) == PLAN.steps
    assert steps[-1].loss < 0.5 * steps[0].loss
    assert all(not torch.equal(before[name], now) for name, now in model.named_parameters())


def test_errands_of_a_step_are_one_tree_and_each_is_trained_once() -> None:
    errands = [[Sample([1, 2, number, number + 1], group=number)] for number in range(3, 43)]
    model = make_tiny_model("llama")
    prepare(model)
    steps = list(train(model, errands, PLAN))
    # Two errands share their first two tokens.
    assert {(step.flat_tokens, step.tree_tokens) for step in steps} == {(8, 6)}


def test_muon_takes_the_matrices_of_the_layers_and_each_parameter_has_one_optimizer() -> None:
    model = make_tiny_model("llama")
    adamw, muon = make_optimizers(model, PLAN)
    taken = [[id(p) for group in o.param_groups for p in group["params"]] for o in (adamw, muon)]
    assert sorted(taken[0] + taken[1]) == sorted(id(p) for p in model.parameters())
    names = {id(p): name for name, p in model.named_parameters()}
    assert all("layers" in names[one] and "norm" not in names[one] for one in taken[1])
    assert all("proj" not in names[one] for one in taken[0])


def test_rate_rises_stays_and_falls() -> None:
    rates = [rate_at(step, steps=100) for step in range(100)]
    assert rates[0] == pytest.approx(0.2)
    assert rates[4:51] == [1.0] * 47
    assert rates[50:] == sorted(rates[50:], reverse=True)
    assert 0 < rates[-1] <= 0.02


def test_lines_are_those_of_a_run() -> None:
    model = make_tiny_model("llama")
    prepare(model)
    lines = as_lines(list(train(model, ERRANDS, replace(PLAN, steps=2))))
    assert [line["step"] for line in lines] == [1, 2]
    assert all(line["flat_tokens_per_second"] > line["tree_tokens_per_second"] for line in lines)
