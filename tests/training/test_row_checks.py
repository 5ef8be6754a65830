from __future__ import annotations

import pytest
import torch

from treetrain.data.sample import Sample
from treetrain.errors import UnsupportedModelError
from treetrain.testing.models import make_tiny_model
from treetrain.training.config import TrainConfig
from treetrain.training.rows import hold_out
from treetrain.training.run import run_training

PPO = {"name": "ppo", "old_logprobs": "recorded", "clip_low": 0.2, "clip_high": 0.2}
GOOD = {"advantage": 1.0, "logprobs": [0.0, -4.0, -4.0]}


def make_config(output, **values):
    return TrainConfig.model_validate(
        {
            "model": {"path": "unused"},
            "data": {"files": "unused", "shuffle": False},
            "output": str(output),
            "reduction": "token_mean",
            "optimizer": {"lr": 1e-2},
            "steps": 1,
            "tree": {"max_tokens": 4},
            "check": {"on_difference": "off"},
            **values,
        }
    )


def train(output, last, *, family="llama", **values):
    """A run of one step that does not come to its last row."""
    first = [Sample([1, 2, 3], group=group, **GOOD) for group in range(3)]
    model = make_tiny_model(family)
    run_training(model, [*first, last], make_config(output, **values), say=len, watches=())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"logprobs": [0.0, -4.0, -4.0]}, r"advantages must be given, .* \(rows\.jsonl:9\)"),
        ({"advantage": 1.0}, r"none recorded for .* \(rows\.jsonl:9\); set .* field 'logprobs'"),
        (
            {"advantage": 1.0, "logprobs": [0.0, -4.0, 3.0]},
            r"old_logprobs\[0\] \(rows\.jsonl:9\) must be logarithms .* got 3\.0 at index 1",
        ),
    ],
)
def test_what_a_policy_loss_lacks_in_the_last_row_is_told_before_the_first_step(
    tmp_path, given, message
):
    last = Sample([1, 2, 4], group="last", source="rows.jsonl:9", **given)
    with pytest.raises(ValueError, match=message):
        train(tmp_path / "out", last, loss=PPO)
    assert list((tmp_path / "out").iterdir()) == []


def test_what_is_not_trained_needs_no_advantage(tmp_path):
    train(tmp_path / "out", Sample([1, 2, 4], [0, 0, 0], group="last"), loss=PPO)


@pytest.mark.parametrize("max_tokens", [4, 2])
def test_ids_that_the_model_has_not_are_told_before_the_first_step(tmp_path, max_tokens):
    tree = {"max_tokens": max_tokens}
    last = Sample([1, 2, 64], group="last", source="rows.jsonl:9")
    with pytest.raises(ValueError, match=r"^rows\.jsonl:9: token ids must be below .* 64, got 64"):
        train(tmp_path / "out", last, tree=tree)
    assert list((tmp_path / "out").iterdir()) == []
    # Those that are only evaluated, too.
    share = {"share": 0.3, "every": 1}
    with pytest.raises(ValueError, match=r"^rows\.jsonl:9: token ids must be below"):
        train(tmp_path / "out", last, tree=tree, evaluation=share, seed=find_seed(share))


def find_seed(share):
    """A seed that holds the last of four groups out."""
    samples = [Sample([1], group=group) for group in range(4)]
    return next(
        seed for seed in range(99) if hold_out(samples, share["share"], seed=seed)[1][0].group == 3
    )


def test_paths_longer_than_the_model_are_told_before_the_first_step(tmp_path):
    last = Sample([1] * 513, group="last", source="rows.jsonl:9")
    with pytest.raises(ValueError, match=r"^rows\.jsonl:9: paths must be at most 512 tokens long"):
        train(tmp_path / "out", last, family="gpt2")
    assert list((tmp_path / "out").iterdir()) == []


def test_losses_of_routers_that_are_not_there_are_told_before_the_first_step(tmp_path):
    with pytest.raises(UnsupportedModelError, match="has no router"):
        train(
            tmp_path / "out",
            Sample([1, 2, 4]),
            router={"form": "micro_batch", "load_balancing": 0.1},
        )
    assert list((tmp_path / "out").iterdir()) == []


def test_a_model_that_is_spoilt_is_told_by_its_parameter(tmp_path):
    model = make_tiny_model("llama")
    with torch.no_grad():
        model.lm_head.weight[3, 4] = float("nan")
    config = make_config(tmp_path / "out")
    with pytest.raises(ValueError, match=r"finite before the first step, got .*lm_head\.weight"):
        run_training(model, [Sample([1, 2, 3])], config, say=len, watches=())


def test_weights_that_cannot_be_divided_by_are_told_before_the_first_step(tmp_path):
    last = Sample([1, 2, 4], [0, 1, -1], group="last")
    with pytest.raises(ValueError, match="weights must sum to more than 0"):
        train(tmp_path / "out", last, steps=9)
    assert list((tmp_path / "out").iterdir()) == []
    # Together with others they can; so they can where no step comes to them.
    train(tmp_path / "two", last, steps=9, accumulation=4)
    train(tmp_path / "three", last, steps=2)


@pytest.mark.parametrize(
    ("weights", "message"),
    [([0, 1, -1], "weights must sum to more than 0"), ([0, 1e308, 1e308], "have a finite sum")],
)
@pytest.mark.parametrize("every", [None, 1000])
def test_weights_of_a_later_step_or_an_evaluation_are_told_before_the_first_step(
    tmp_path, weights, message, every
):
    last = Sample([1, 2, 4], weights, group="last", source="rows.jsonl:9")
    evaluation = every and {"share": 0.3, "every": every}
    seed = 0 if evaluation is None else find_seed(evaluation)
    with pytest.raises(ValueError, match=message):
        train(tmp_path / "out", last, steps=8, evaluation=evaluation, seed=seed)
    assert list((tmp_path / "out").iterdir()) == []
