from __future__ import annotations

from functools import reduce
from operator import add

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.losses.random_parts import SAMPLES, cut_batch, rows_of

from treetrain.data.sample import Sample
from treetrain.losses.policy import policy_loss, policy_terms
from treetrain.losses.sft import sft_loss, sft_terms
from treetrain.losses.window import measure_window
from treetrain.models.prepare import prepare
from treetrain.packing.batch import pack
from treetrain.packing.parts import whole_batch
from treetrain.testing.models import make_tiny_model

REDUCTIONS = ["path_mean", "sequence_mean", "token_mean", "trajectory_mean", "sum", 3.5]
RATIO = {"old_logprobs": "drawn", "clip_low": 0.1, "clip_high": 0.2}
KL = {"reference_logprobs": "drawn", "kl_coefficient": 0.3}
CHOICES = {
    "plain": {"objective": "plain"},
    "plain, entropy": {"objective": "plain", "entropy_coefficient": 0.2},
    "plain, KL": {"objective": "plain", **KL},
    "ppo": {"objective": "ppo", **RATIO},
    "ppo, current": {"objective": "ppo", **RATIO, "old_logprobs": "current"},
    "grpo, all": {"objective": "grpo", **RATIO, **KL, "entropy_coefficient": -0.1},
}
#: What a window holds beside the batch.
OTHERS = [
    Sample([1, 2, 2], [0, 1, 2], trajectory="x"),
    Sample([1, 1], [0, 3], trajectory="y"),
    Sample([0, 1], [0, 0]),
]


def draw_logprobs(samples, seed):
    rng = np.random.default_rng(seed)
    return [-3 * rng.random(max(len(sample) - 1, 0)) for sample in samples]


def fill_in(choice, samples):
    arguments = dict(CHOICES[choice])
    for seed, name in enumerate(("old_logprobs", "reference_logprobs")):
        if arguments.get(name) == "drawn":
            arguments[name] = draw_logprobs(samples, seed)
    return arguments


def hidden_and_gradients(prepared, hidden, losses):
    """Gradients of a sum of losses in the hidden states and in the head, zeros for none."""
    inputs = [hidden, *prepared.head.parameters]
    needed = [loss for loss in losses if loss.requires_grad]
    if not needed:
        return [torch.zeros_like(one) for one in inputs]
    found = torch.autograd.grad(sum(needed), inputs, allow_unused=True)
    return [
        torch.zeros_like(one) if grad is None else grad
        for one, grad in zip(inputs, found, strict=True)
    ]


def assert_close(ours, theirs):
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype
    if theirs.numel():
        scale = max(1.0, float(theirs.abs().max()))
        assert float((ours - theirs).abs().max()) <= 1e-12 * scale


def check_parts(prepared, terms, whole, *, num_parts, seed):
    """Parts of random tokens have together the loss, statistics and gradients of the whole."""
    batch = terms.batch
    hidden = prepared.hidden_states(batch.packed).detach().requires_grad_()
    parts = cut_batch(batch, num_parts, seed)
    shares = [terms.evaluate(prepared, rows_of(hidden, part), part) for part in parts]
    for share, part in zip(shares, parts, strict=True):
        assert share.loss.requires_grad == (len(part.part.targets) > 0)
        assert share.targets == np.count_nonzero(part.part.targets.edge_weights)
    total = reduce(add, shares)
    assert_close(total.loss.detach(), whole.loss.detach())
    assert total.targets == whole.targets
    assert set(total.statistics) == set(whole.statistics)
    for name, value in whole.statistics.items():
        assert_close(total.statistics[name], value)
        assert not total.statistics[name].requires_grad
    alone = terms.evaluate(prepared, hidden, whole_batch(batch))
    assert torch.equal(alone.loss, whole.loss)
    for ours, theirs in zip(
        hidden_and_gradients(prepared, hidden, [share.loss for share in shares]),
        hidden_and_gradients(prepared, hidden, [alone.loss]),
        strict=True,
    ):
        assert_close(ours, theirs)


EACH = given(
    SAMPLES,
    st.sampled_from(REDUCTIONS),
    st.booleans(),
    st.integers(1, 4),
    st.integers(0, 2**32 - 1),
    st.sampled_from([1, 3, None]),
)
FEW = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40
)


@EACH
@FEW
def test_parts_of_supervised_training_add_up_to_the_whole(
    toy, samples, reduction, windowed, num_parts, seed, chunk_tokens
):
    batch = pack(samples)
    window = measure_window([batch, pack(OTHERS)]) if windowed else None
    settled = {"window": window, "chunk_tokens": chunk_tokens}
    terms = sft_terms(batch, reduction, **settled)
    loss = sft_loss(toy, batch, reduction, **settled)
    whole = terms.evaluate(toy, toy.hidden_states(batch.packed), whole_batch(batch))
    assert torch.equal(whole.loss, loss)
    assert whole.targets == sum(np.count_nonzero(sample.weights[1:]) for sample in samples)
    check_parts(toy, terms, whole, num_parts=num_parts, seed=seed)


@pytest.mark.parametrize("choice", list(CHOICES))
@EACH
@FEW
def test_parts_of_a_policy_loss_add_up_to_the_whole(
    toy, choice, samples, reduction, windowed, num_parts, seed, chunk_tokens
):
    batch = pack(samples)
    window = measure_window([batch, pack(OTHERS)]) if windowed else None
    settled = fill_in(choice, samples) | {
        "window": window,
        "chunk_tokens": chunk_tokens,
        "temperature": 0.7,
    }
    terms = policy_terms(batch, reduction, **settled)
    whole = policy_loss(toy, batch, reduction, **settled)
    check_parts(toy, terms, whole, num_parts=num_parts, seed=seed)


def test_statistics_of_supervised_training_are_the_mean_logprob_of_trained_edges(toy, alone):
    samples = [Sample([1, 2, 3], [0, 2, 1]), Sample([1, 2, 4], [0, 0, 5])]
    batch = pack(samples)
    result = sft_terms(batch, "sum").evaluate(
        toy, toy.hidden_states(batch.packed), whole_batch(batch)
    )
    first, second = (alone(toy, sample.tokens)[0] for sample in samples)
    assert result.targets == 3
    expected = (first.sum() + second[1]).item() / 3
    assert result.statistics["logprob"].item() == pytest.approx(expected, abs=1e-10)


def test_a_part_without_a_target_loses_nothing_but_the_whole_batch_has_gradients_of_zero(toy):
    batch = pack([Sample([1, 2, 3], [0, 0, 0], advantage=1.0)])
    hidden = toy.hidden_states(batch.packed)
    for terms in (
        sft_terms(batch, "token_mean"),
        policy_terms(batch, "token_mean", objective="plain", entropy_coefficient=1.0),
    ):
        (part,) = cut_batch(batch, 1, 0)
        share = terms.evaluate(toy, hidden, part)
        assert (share.loss.item(), share.targets, share.statistics) == (0, 0, {})
        assert not share.loss.requires_grad
        assert share.loss.dtype == torch.float64
        whole = terms.evaluate(toy, hidden, whole_batch(batch))
        assert whole.loss.item() == 0
        assert whole.loss.requires_grad


def test_every_part_refuses_factors_that_the_loss_of_the_batch_cannot_hold():
    prepared = prepare(make_tiny_model("llama"))
    batch = pack([[1, 2, 3], Sample([4, 5, 6], [0, 1e39, 1], source="data:2")])
    hidden = prepared.hidden_states(batch.packed)
    ratio = {"old_logprobs": "current", "clip_low": 0.2, "clip_high": 0.2}
    for terms in (
        sft_terms(batch, "sum"),
        policy_terms(batch, "sum", objective="ppo", advantages=[1, 1], **ratio),
    ):
        for part in cut_batch(batch, 2, 1):
            assert len(part.part.targets)
            with pytest.raises(ValueError, match=r"weights must stay .* samples\[1\] \(data:2\)"):
                terms.evaluate(prepared, rows_of(hidden, part), part)


def test_parts_in_float16_keep_the_gradients_of_a_scaled_loss():
    prepared = prepare(make_tiny_model("llama", dtype=torch.float16))
    batch = pack([[5, 6, 7, 8, 9], [5, 6, 7, 10, 11, 12]])
    hidden = prepared.hidden_states(batch.packed).detach().requires_grad_()
    terms = sft_terms(batch, 1e7)
    scale = 2.0**20
    whole = terms.evaluate(prepared, hidden, whole_batch(batch)).loss * scale
    parts = cut_batch(batch, 3, 0)
    shares = [terms.evaluate(prepared, rows_of(hidden, part), part).loss for part in parts]
    (expected,) = torch.autograd.grad(whole, hidden)
    (found,) = torch.autograd.grad(sum(shares) * scale, hidden)
    assert expected.abs().max() > 1e-3
    assert float((found - expected).abs().max()) <= 2e-3 * float(expected.abs().max())


def test_terms_check_their_arguments_before_any_model_is_there():
    batch = pack([[1, 2, 3]])
    with pytest.raises(ValueError, match="reduction must be"):
        sft_terms(batch, "mean")
    with pytest.raises(ValueError, match="chunk_tokens must be at least 1, got 0"):
        sft_terms(batch, "sum", chunk_tokens=0)
    with pytest.raises(TypeError, match="router must be None or a RouterLoss, got float"):
        sft_terms(batch, "sum", router=0.1)
    with pytest.raises(ValueError, match="advantages must be given"):
        policy_terms(batch, "sum", objective="plain")
    with pytest.raises(ValueError, match=r"old_logprobs\[0\] must have one value per edge"):
        policy_terms(
            batch,
            "sum",
            objective="ppo",
            advantages=[1],
            old_logprobs=[[-1.0]],
            clip_low=0.1,
            clip_high=0.1,
        )
    with pytest.raises(ValueError, match="temperature must be a finite number above 0, got 0"):
        policy_terms(batch, "sum", objective="plain", advantages=[1], temperature=0)
    terms = sft_terms(batch, "sum")
    assert not terms.needs_choices
    with pytest.raises(ValueError, match="note_choices must be called for terms whose"):
        terms.note_choices(None, whole_batch(batch))
