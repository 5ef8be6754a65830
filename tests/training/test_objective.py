from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.training.runs import make_config

from treetrain.data.sample import Sample
from treetrain.losses.logprobs import sequence_logprobs
from treetrain.losses.policy import policy_loss
from treetrain.losses.router_loss import RouterLoss
from treetrain.losses.sft import sft_loss
from treetrain.models.prepare import prepare
from treetrain.packing.batch import pack
from treetrain.partitioning.step import add_gradients
from treetrain.testing.models import make_tiny_model
from treetrain.testing.trees import tree_family
from treetrain.training.objective import make_objective
from treetrain.training.rows import make_rows
from treetrain.training.trainer import measure_window

PPO = {"name": "ppo", "old_logprobs": "start", "clip_low": 0.1, "clip_high": 0.2}


def make_samples():
    rng = np.random.default_rng(0)
    return [
        Sample(
            tokens,
            group=number % 3,
            advantage=float(rng.normal()),
            logprobs=-4 - rng.random(len(tokens)),
        )
        for number, tokens in enumerate(tree_family()["uneven"])
    ]


def gradients_of(model):
    found = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    return found


def add_window(model, objective, batches, partitions):
    window = measure_window(batches)
    router = objective.measure_router(model, batches)
    shares = [
        add_gradients(model, objective.lay_out(batch, window, router), partitions.get(batch))
        for batch in batches
    ]
    return float(sum(share.loss for share in shares))


@pytest.mark.parametrize("max_tokens", [1000, 20, 9])
@pytest.mark.parametrize(
    "loss",
    [
        {"name": "plain", "entropy_coefficient": 0.01, "temperature": 0.7},
        PPO,
        {**PPO, "name": "grpo", "reference": "start", "kl_coefficient": 0.3},
        {**PPO, "old_logprobs": "current"},
        {**PPO, "old_logprobs": "recorded"},
    ],
    ids=["plain", "ppo", "grpo", "current", "recorded"],
)
def test_a_policy_loss_by_name_is_that_of_the_function_however_rows_are_cut(loss, max_tokens):
    model = make_tiny_model("llama", dtype=torch.float64)
    prepare(model)
    samples = make_samples()
    config = make_config(loss=loss, tree={"max_tokens": max_tokens})
    rows = make_rows(samples, config.tree, seed=None)
    objective = make_objective(model, rows.batches, config, rows.partitions)
    whole = pack(samples)
    start = [own.detach() for own in sequence_logprobs(model, whole)]
    with torch.no_grad():  # so that ratios are not 1
        model.lm_head.weight += 0.05 * torch.randn_like(model.lm_head.weight)
    options = {
        key: loss[key]
        for key in ("clip_low", "clip_high", "kl_coefficient", "entropy_coefficient", "temperature")
        if key in loss
    }
    if "old_logprobs" in loss:
        old = loss["old_logprobs"]
        options["old_logprobs"] = start if old == "start" else old
    if "reference" in loss:
        options["reference_logprobs"] = start
    expected = policy_loss(model, whole, "token_mean", objective=loss["name"], **options).loss
    expected.backward()
    want = gradients_of(model)
    found = add_window(model, objective, rows.batches, rows.partitions)
    assert found == pytest.approx(float(expected.detach()), rel=1e-9)
    # Norms are computed in float32 whatever the dtype.
    for one, other in zip(gradients_of(model), want, strict=True):
        assert float((one - other).abs().max()) <= 1e-5 * float(other.abs().max())


@pytest.mark.parametrize("form", ["batch", "sequence"])
def test_router_losses_of_a_step_are_those_of_all_its_rows(form):
    model = make_tiny_model("qwen3_moe")
    prepare(model)
    samples = make_samples()
    router = {"form": form, "load_balancing": 0.5, "z": 0.1}
    config = make_config(router=router, tree={"max_tokens": 14}, accumulation=9)
    rows = make_rows(samples, config.tree, seed=None)
    assert len(rows.batches) > 1
    objective = make_objective(model, rows.batches, config, rows.partitions)
    expected = sft_loss(
        model, pack(samples), "token_mean", router=RouterLoss(form, load_balancing=0.5, z=0.1)
    )
    expected.backward()
    want = gradients_of(model)
    found = add_window(model, objective, rows.batches, rows.partitions)
    assert found == pytest.approx(float(expected.detach()), rel=1e-6)
    for one, other in zip(gradients_of(model), want, strict=True):
        assert float((one - other).abs().max()) <= 1e-5 * float(other.abs().max())


def test_router_losses_over_a_window_with_partitions_are_refused_with_the_way_out():
    model = make_tiny_model("qwen3_moe")
    config = make_config(
        router={"form": "batch", "load_balancing": 0.5}, tree={"max_tokens": 9}, accumulation=2
    )
    rows = make_rows(make_samples(), config.tree, seed=None)
    with pytest.raises(ValueError, match=r"router\.form must not be 'batch' .* got accumulation 2"):
        make_objective(model, rows.batches, config, rows.partitions)


@pytest.mark.parametrize("max_tokens", [1000, 9])
def test_autocast_computes_in_bfloat16_and_trains_float32_weights(max_tokens):
    model = make_tiny_model("llama")
    prepare(model)
    samples = make_samples()
    found = {}
    for autocast in (None, "bfloat16"):
        config = make_config(autocast=autocast, tree={"max_tokens": max_tokens})
        rows = make_rows(samples, config.tree, seed=None)
        objective = make_objective(model, rows.batches, config, rows.partitions)
        with objective.computing(torch.device("cpu")):
            found[autocast] = add_window(model, objective, rows.batches, rows.partitions)
        assert all(gradient.dtype == torch.float32 for gradient in gradients_of(model))
    assert found["bfloat16"] != found[None]
    assert found["bfloat16"] == pytest.approx(found[None], rel=2e-2)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ({"name": "ppo"}, "old_logprobs must be given for loss 'ppo'"),
        ({"clip_low": 0.1}, "clip_low must not be given for loss 'sft'"),
        ({"temperature": 2.0}, "temperature must not be given for loss 'sft'"),
        ({**PPO, "kl_coefficient": 0.1}, "reference must be given: reference and kl_coefficient"),
        ({**PPO, "name": "grpo"}, "reference must be given.*'grpo' needs them"),
        ({"name": "dpo"}, "'sft', 'plain', 'ppo' or 'grpo'"),
    ],
)
def test_a_loss_has_what_it_needs_and_nothing_else(loss, message):
    with pytest.raises(ValueError, match=message):
        make_config(loss=loss)


def test_rows_without_advantages_are_refused_by_their_place():
    model = make_tiny_model("llama")
    prepare(model)
    config = make_config(loss={"name": "plain"})
    rows = make_rows([Sample([1, 2, 3], source="rows.jsonl:7")], config.tree, seed=None)
    objective = make_objective(model, rows.batches, config, {})
    with pytest.raises(ValueError, match=r"advantage.*rows\.jsonl:7"):
        add_window(model, objective, rows.batches, {})
