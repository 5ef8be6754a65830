from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from treetrain.data.sample import Sample
from treetrain.demo.measure import Timing, measure, separate_step, time_interleaved, tree_step
from treetrain.demo.plans import PLANS
from treetrain.models.prepare import prepare
from treetrain.models.shape import measure_shape
from treetrain.testing.models import make_tiny_model

PLAN = replace(PLANS["small"], rounds=2)
SEQUENCES = ([1, 2, 3, 4, 5], [1, 2, 3, 6, 7], [1, 2, 3, 6, 7, 8, 9])


def test_both_ways_give_the_same_loss_and_gradients() -> None:
    samples = [Sample(tokens, [0, 1, 0.5, 1, 2, 1, 1][: len(tokens)]) for tokens in SEQUENCES]
    plain, packed = make_tiny_model("llama"), make_tiny_model("llama")
    prepare(packed)
    assert tree_step(packed, samples) == pytest.approx(separate_step(plain, samples), rel=1e-5)
    pairs = [
        (ours.grad, theirs.grad)
        for ours, theirs in zip(packed.parameters(), plain.parameters(), strict=True)
        if ours.grad is not None and theirs.grad is not None
    ]
    assert len(pairs) == len(list(plain.parameters()))
    largest = max(float(theirs.abs().max()) for _, theirs in pairs)
    for ours, theirs in pairs:
        assert float((ours - theirs).abs().max()) <= 1e-5 * largest


def test_measurement_leaves_the_model_as_it_was() -> None:
    model = make_tiny_model("llama")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    implementation = model.config._attn_implementation
    told: list[tuple[int, int]] = []
    result = measure(
        model,
        [Sample(t) for t in SEQUENCES],
        PLAN,
        measure_shape(model),
        lambda done, total: told.append((done, total)),
    )
    steps = 2 * (PLAN.rounds + 1)
    assert told == [(done, steps) for done in range(1, steps + 1)]
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.config._attn_implementation == implementation
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert (result.flat_tokens, result.tree_tokens) == (17, 9)
    assert len(result.tree.seconds) == len(result.separate.seconds) == PLAN.rounds
    assert result.bound_fraction == pytest.approx(result.speedup / result.bound)


def test_contestants_take_turns_and_the_first_round_is_not_counted() -> None:
    order: list[str] = []
    timings = time_interleaved(
        {"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=3
    )
    assert order == ["a", "b"] * 4
    assert {name: len(timing.seconds) for name, timing in timings.items()} == {"a": 3, "b": 3}


def test_median_and_spread_of_a_timing() -> None:
    timing = Timing((3.0, 1.0, 2.0))
    assert timing.median == 2.0
    assert timing.spread == (1.0, 3.0)
