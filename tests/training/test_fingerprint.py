from __future__ import annotations

import json
from dataclasses import fields

import numpy as np
import pytest

from treetrain.data.sample import Sample
from treetrain.training.config import TrainConfig
from treetrain.training.fingerprint import FREE, find_differences, is_free, take_fingerprint

SAMPLE = Sample([1, 2, 3], [0, 1, 1], group="a", trajectory=1, advantage=0.5, source="x:1")


def make_config(**values):
    return TrainConfig.model_validate(
        {
            "model": {"path": "m"},
            "data": {"files": "f"},
            "output": "o",
            "reduction": "sum",
            "optimizer": {"lr": 1.0},
            "schedule": {"kind": "linear"},
            "steps": 2,
            **values,
        }
    )


def test_a_fingerprint_outlives_json():
    marks = take_fingerprint(make_config(), [SAMPLE], [SAMPLE])
    assert find_differences(json.loads(json.dumps(marks)), marks) == []


def test_keys_that_are_free_are_keys_and_the_others_are_bound():
    known = take_fingerprint(make_config(evaluation={"every": 1, "share": 0.5}), [])["config"]
    for key in FREE:
        assert any(name.startswith(key) for name in known), key
    bound = {name for name in known if not is_free(name)}
    assert {"reduction", "optimizer.lr", "seed", "data.shuffle", "tree.max_tokens"} <= bound
    # A key that is new is bound until somebody says otherwise.
    assert not is_free("something.new")


@pytest.mark.parametrize(
    ("change", "free"),
    [
        ({"output": "p", "overwrite": True, "save_every": 1, "keep_last": 9}, True),
        ({"data": {"files": "g", "expand": "per_step"}}, True),
        ({"check": {"flat_tokens": 1}}, True),
        ({"data": {"files": "f", "shuffle": False}}, False),
        ({"reduction": 2.0}, False),
        ({"steps": None, "epochs": 3}, False),
        ({"loss": {"name": "plain"}}, False),
        ({"model": {"path": "m", "lora": {"r": 1, "alpha": 1}}}, False),
    ],
)
def test_what_decides_nothing_may_change_and_nothing_else(change, free):
    found = find_differences(
        take_fingerprint(make_config(), [SAMPLE]), take_fingerprint(make_config(**change), [SAMPLE])
    )
    assert (found == []) == free


def test_everything_of_a_sample_but_its_place_counts():
    before = take_fingerprint(make_config(), [SAMPLE])
    given = {field.name: getattr(SAMPLE, field.name) for field in fields(Sample)}
    others = {
        "tokens": [1, 2, 4],
        "weights": [0, 1, 0.5],
        "keys": [0, 0, 1],
        "group": "b",
        "trajectory": 2,
        "advantage": np.array([0.5, 0.5, 0.5]),
        "logprobs": [-1.0, -1.0, -1.0],
        "reward": 1.0,
    }
    for name in given.keys() - {"source"}:
        after = take_fingerprint(make_config(), [Sample(**{**given, name: others[name]})])
        assert find_differences(before, after) == [f"data.{name}: other values"]
    moved = take_fingerprint(make_config(), [Sample(**{**given, "source": "y:9"})])
    assert find_differences(before, moved) == []


def test_the_order_of_sequences_counts():
    other = Sample([3, 2, 1])
    one, two = (
        take_fingerprint(make_config(), samples) for samples in ([SAMPLE, other], [other, SAMPLE])
    )
    assert "data.tokens: other values" in find_differences(one, two)
