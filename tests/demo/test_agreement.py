from __future__ import annotations

import torch

from treetrain.data.sample import Sample
from treetrain.demo import agreement
from treetrain.demo.agreement import compare_ways
from treetrain.demo.measure import tree_step
from treetrain.testing.models import make_tiny_model

SAMPLES = [Sample(tokens) for tokens in ([1, 2, 3, 4, 5], [1, 2, 3, 6, 7], [1, 2, 3, 6, 7, 8, 9])]


def test_both_ways_reach_the_same_parameters() -> None:
    model = make_tiny_model("llama")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    told: list[tuple[int, int]] = []
    found = compare_ways(
        model, SAMPLES, steps=3, learning_rate=0.05, on_progress=lambda *p: told.append(p)
    )
    assert told[-1] == (6, 6)
    assert found.largest_change > 1e-2
    assert found.largest_difference < 1e-5 * found.largest_change
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_a_wrong_tree_step_is_seen(monkeypatch) -> None:
    monkeypatch.setattr(agreement, "tree_step", lambda own, samples: tree_step(own, samples[1:]))
    found = compare_ways(make_tiny_model("llama"), SAMPLES, steps=2, learning_rate=0.05)
    assert found.largest_difference > 1e-3 * found.largest_change
