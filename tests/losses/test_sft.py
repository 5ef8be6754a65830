from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
import torch
from torch.nn.modules.module import register_module_full_backward_hook

from treetrain.data.sample import Sample
from treetrain.losses.logprobs import sequence_logprobs
from treetrain.losses.policy import policy_loss
from treetrain.losses.sft import sft_loss
from treetrain.losses.window import measure_window
from treetrain.models.prepare import prepare
from treetrain.packing.batch import pack
from treetrain.packing.budget import pack_batches
from treetrain.testing.models import make_tiny_model

REDUCTIONS = ["path_mean", "sequence_mean", "token_mean", "trajectory_mean", "sum", 3.5]
EACH_REDUCTION = pytest.mark.parametrize("reduction", REDUCTIONS)

# Two groups; trajectory x in five sequences, y in one, two sequences without a trajectory; masks
# and weights that differ on shared tokens; duplicates, strict prefixes, one that trains nothing.
SAMPLES = [
    Sample([1, 2, 3, 4], [0, 0, 1, 1], group="a", trajectory="x"),
    Sample([1, 2, 3, 4, 5, 6], [0, 0, 0, 0, 1, 1], group="a", trajectory="x"),
    Sample([1, 2, 3, 7, 8], [0, 1, 0.5, 2, 1], group="a", trajectory="x"),
    Sample([1, 2, 3, 7, 8], [9, 1, 1, 1, 1], group="a", trajectory="x"),
    Sample([1, 2, 9], [0, 1, 1], group="a", trajectory="x"),
    Sample([1, 2, 9, 3], [0, 0.25, 0, 1], group="a", trajectory="y"),
    Sample([1, 5, 6], [0, 1, 1], group="b"),
    Sample([1, 5, 6, 6], [0, 0, 0, 0], group="b"),
]


def baseline_loss(model, samples, reduction, alone):
    """The loss as its definition says it, from the list of sequences."""
    sums, weights, trajectories = [], [], []
    for index, sample in enumerate(samples):
        w = torch.tensor(sample.weights[1:])
        sums.append(-(w * alone(model, sample.tokens)[0]).sum())
        weights.append(w.sum())
        name = sample.trajectory
        trajectories.append(index if name is None else (sample.group, name))
    if reduction == "path_mean":
        return sum(sums) / len(samples)
    if reduction == "sequence_mean":
        return sum(s / w for s, w in zip(sums, weights, strict=True) if w) / len(samples)
    if reduction == "token_mean":
        return sum(sums) / sum(weights)
    if reduction == "trajectory_mean":
        by_name = defaultdict(lambda: [0.0, 0.0])
        for name, s, w in zip(trajectories, sums, weights, strict=True):
            by_name[name][0] += s
            by_name[name][1] += w
        return sum(s / w for s, w in by_name.values() if w) / len(by_name)
    return sum(sums) / (1.0 if reduction == "sum" else reduction)


@EACH_REDUCTION
def test_loss_and_gradients_are_those_of_separate_sequences(
    toy, alone, gradients, assert_equal, reduction
):
    loss = sft_loss(toy, pack(SAMPLES), reduction, chunk_tokens=2)
    expected = baseline_loss(toy, SAMPLES, reduction, alone)
    assert_equal([loss], [expected])
    assert_equal(gradients(loss, toy), gradients(expected, toy))


@EACH_REDUCTION
@pytest.mark.parametrize(
    "split",
    [
        [[0, 1, 2, 3, 4, 5], [6, 7]],  # one tree per batch
        [[0, 1], [2, 3], [4, 5], [6, 7]],  # four accumulation steps, trees and trajectories cut
        [[7], [5, 0], [6, 2, 1], [4, 3]],
    ],
)
def test_gradient_does_not_depend_on_how_a_step_is_cut(
    toy, gradients, assert_equal, reduction, split
):
    whole = sft_loss(toy, pack(SAMPLES), reduction)
    batches = [pack([SAMPLES[index] for index in part]) for part in split]
    window = measure_window(batches)
    losses = [sft_loss(toy, batch, reduction, window=window) for batch in batches]
    assert_equal([sum(losses)], [whole])
    assert_equal(gradients(sum(losses), toy), gradients(whole, toy))


@EACH_REDUCTION
def test_gradient_does_not_depend_on_a_token_budget(toy, gradients, assert_equal, reduction):
    batches = pack_batches(SAMPLES, max_tokens=7)
    assert len(batches) > 2
    window = measure_window(batches)
    losses = [sft_loss(toy, batch, reduction, window=window) for batch in batches]
    whole = sft_loss(toy, pack(SAMPLES), reduction)
    assert_equal(gradients(sum(losses), toy), gradients(whole, toy))


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_strict_prefix_has_its_own_last_target_and_no_other(
    toy, alone, gradients, assert_equal, order
):
    pair = [[1, 2, 3, 4], [1, 2, 3, 4, 5, 6]]
    loss = sft_loss(toy, pack([pair[index] for index in order]), "sum")
    expected = -sum(alone(toy, tokens)[0].sum() for tokens in pair)
    assert_equal([loss], [expected])
    assert_equal(gradients(loss, toy), gradients(expected, toy))


def test_second_root_is_not_predicted_by_the_first(toy, gradients, assert_equal, alone):
    loss = sft_loss(toy, pack([[1, 2], [7, 8]]), "sum")
    expected = -sum(alone(toy, tokens)[0].sum() for tokens in ([1, 2], [7, 8]))
    assert_equal(gradients(loss, toy), gradients(expected, toy))


def test_trajectory_counts_once_however_many_sequences_it_became(toy, alone, assert_equal):
    parts = [[1, 2, 3 + part] for part in range(5)]
    samples = [Sample(tokens, trajectory="x") for tokens in parts] + [
        Sample([7, 8], trajectory="y")
    ]
    batch = pack(samples)
    nll = [-alone(toy, sample.tokens)[0] for sample in samples]
    x, y = torch.cat(nll[:5]), nll[5]
    assert_equal(
        [sft_loss(toy, batch, name) for name in ("trajectory_mean", "sequence_mean", "token_mean")],
        [
            (x.mean() + y.mean()) / 2,
            torch.stack([row.mean() for row in nll]).mean(),
            torch.cat(nll).mean(),
        ],
    )


def test_same_trajectory_name_in_two_groups_is_two_trajectories(toy):
    batch = pack([Sample([1, 2], group=g, trajectory=0) for g in ("a", "b")])
    assert measure_window([batch]).num_trajectories == 2


@EACH_REDUCTION
def test_batch_that_trains_nothing_has_loss_and_gradient_zero(toy, gradients, reduction):
    loss = sft_loss(toy, pack([Sample([1, 2, 3], [1, 0, 0]), [4], []]), reduction)
    assert loss.item() == 0
    assert all((gradient == 0).all() for gradient in gradients(loss, toy))


@pytest.mark.parametrize("reduction", ["token_mean", "sequence_mean", "trajectory_mean"])
@pytest.mark.parametrize("weights", [[0, 1, -1], [0, -1, -1]])
def test_mean_over_weights_that_do_not_sum_above_zero_is_refused(toy, reduction, weights):
    batch = pack([Sample([1, 2, 3], weights, source="data.jsonl:3"), Sample([5, 6], [0, 0])])
    with pytest.raises(ValueError, match=r"weights must sum to more than 0 .* choose 'sum'") as e:
        sft_loss(toy, batch, reduction)
    if reduction != "token_mean":
        assert "samples[0] (data.jsonl:3)" in str(e.value)


def test_negative_weights_are_fine_where_nothing_divides_by_them(toy, alone, assert_equal):
    samples = [Sample([1, 2, 3], [0, 1, -1]), Sample([1, 2, 4], [0, -1, -1])]
    for reduction in ("path_mean", "sum", 2.0):
        loss = sft_loss(toy, pack(samples), reduction)
        assert_equal([loss], [baseline_loss(toy, samples, reduction, alone)])


def test_wrong_reductions_are_refused(toy):
    batch = pack([[1, 2]])
    with pytest.raises(ValueError, match=r"reduction must be 'path_mean', .* got 'mean'"):
        sft_loss(toy, batch, "mean")
    with pytest.raises(ValueError, match="finite number above 0, got 0"):
        sft_loss(toy, batch, 0)
    with pytest.raises(TypeError, match="must be a name or a number, got NoneType"):
        sft_loss(toy, batch, None)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'reduction'"):
        sft_loss(toy, batch)


def test_window_that_lacks_the_batch_is_refused(toy):
    batch = pack([Sample([1, 2], trajectory="x"), [1, 3]])
    with pytest.raises(ValueError, match="window must include the batch, got a window of 1"):
        sft_loss(toy, batch, "path_mean", window=measure_window([pack([[1, 2]])]))
    other = measure_window([pack([Sample([1, 2], trajectory="y"), [1, 3]])])
    with pytest.raises(ValueError, match="got none of trajectory"):
        sft_loss(toy, batch, "trajectory_mean", window=other)


@pytest.mark.parametrize("family", ["llama", "gemma2"])
@EACH_REDUCTION
def test_prepared_model_has_the_gradients_of_the_untouched_one(family, gradients, reduction):
    untouched, model = make_tiny_model(family), make_tiny_model(family)
    prepare(model)
    loss = sft_loss(model, pack(SAMPLES), reduction, chunk_tokens=3)

    def alone(model, tokens):
        ids = torch.tensor(tokens)
        logp = model(input_ids=ids[None]).logits[0, :-1].log_softmax(-1)
        return logp.gather(1, ids[1:, None])[:, 0], None

    expected = baseline_loss(untouched, SAMPLES, reduction, alone)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    ours, theirs = gradients(loss, model), gradients(expected, untouched)
    largest = max(gradient.abs().max() for gradient in theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert (one - other).abs().max() <= 1e-5 * largest


def test_a_scaled_loss_in_float16_keeps_its_gradients():
    """The scale arrives after the forward pass; gradients made before it would have vanished."""
    model = make_tiny_model("llama")
    prepared = prepare(model)
    batch = pack([[5, 6, 7, 8, 9], [5, 6, 7, 10, 11, 12]])
    sft_loss(model, batch, 1.0).backward()
    expected = model.model.norm.weight.grad.clone()
    model.zero_grad()
    prepared.model.half()
    (sft_loss(model, batch, 1e7) * 2.0**20).backward()
    ours = model.model.norm.weight.grad.float() * (1e7 / 2.0**20)
    assert float((ours - expected).abs().max()) <= 0.02 * float(expected.abs().max())


@pytest.mark.parametrize(
    ("weights", "reduction", "said"),
    [
        ([0, 1e308, 1e308], "sum", r"finite sum, got inf over samples\[1\] \(data:2\)"),
        ([0, 1e-310, 1e-310], "sequence_mean", r"at least 2.2e-308 .* samples\[1\] \(data:2\)"),
        ([0, 1e39, 1], "sum", r"3.4e\+38 for a loss in torch.float32 .* samples\[1\] \(data:2\)"),
        ([0, 1e-46, 1e-46], "path_mean", r"between 1.2e-38 .*, got 5e-47 at most"),
        ([0, 1, 1], 1e-310, r"finite number above 0, got 1e-310"),
        ([0, 1e30, 1], 1e-300, r"got inf at most, of samples\[1\]"),
        ([0, 1e-300, 1], 1e300, r"got 1e-300 at most"),
        ([0, 1e-200, 1e-200], 1e200, r"must not vanish .* got 1e-200 times 1e-200"),
    ],
)
def test_weights_that_the_loss_cannot_hold_are_refused(weights, reduction, said):
    model = make_tiny_model("llama")
    prepare(model)
    batch = pack([Sample([1, 2, 3], [1, 0, 0]), Sample([1, 2, 3], weights, source="data:2")])
    with pytest.raises(ValueError, match=said):
        sft_loss(model, batch, reduction)
    advantages = {"objective": "ppo", "advantages": [1, 1], "old_logprobs": "current"}
    with pytest.raises(ValueError, match=said):
        policy_loss(model, batch, reduction, **advantages, clip_low=0.2, clip_high=0.2)


def test_a_sum_of_several_sequences_that_overflows_is_refused():
    sample = Sample([1, 2], [0, 1e308])
    with pytest.raises(ValueError, match="finite sum, got inf over 2 targets"):
        measure_window([pack([sample, sample])])
    with pytest.raises(ValueError, match="finite sum, got inf over 2 targets"):
        measure_window([pack([sample]), pack([sample])])


@pytest.mark.parametrize("scale", [1e-300, 1e-46, 1e39, 1e300])
def test_extreme_weights_count_as_their_ratios_where_the_reduction_divides(scale):
    model = make_tiny_model("llama")
    prepare(model)
    losses = [
        sft_loss(model, pack([Sample([1, 2, 3], [0, factor, 2 * factor])]), "token_mean")
        for factor in (1.0, scale)
    ]
    assert losses[1].item() == pytest.approx(losses[0].item(), rel=1e-6)


def test_a_weight_that_vanishes_beside_others_is_no_error(toy, alone, assert_equal):
    samples = [Sample([1, 2, 3], [0, 1e-320, 1])]
    loss = sft_loss(toy, pack(samples), "sum")
    assert_equal([loss], [baseline_loss(toy, samples, "sum", alone)])


def test_advantages_that_the_loss_cannot_hold_are_refused():
    model = make_tiny_model("llama")
    prepare(model)
    batch = pack([Sample([1, 2], source="data:1"), [1, 3]])
    settings = {"old_logprobs": "current", "clip_low": 0.2, "clip_high": 0.2}
    for value in (1e39, 1e-46):
        with pytest.raises(ValueError, match=r"must stay between .* samples\[0\] \(data:1\)"):
            policy_loss(model, batch, "sum", objective="plain", advantages=[value, 0])
        with pytest.raises(ValueError, match=r"advantages must stay .* samples\[0\] \(data:1\)"):
            policy_loss(model, batch, "sum", objective="ppo", advantages=[value, 0], **settings)


@pytest.mark.parametrize("everywhere", [False, True])
def test_backward_hooks_of_the_output_layer_change_nothing(everywhere):
    model = make_tiny_model("llama").double()
    prepare(model)
    parameters = list(model.parameters())
    batch = pack(SAMPLES)

    def gradients():
        loss = sft_loss(model, batch, "sum")
        logprobs = torch.cat(sequence_logprobs(model, batch)).sum()
        return [torch.autograd.grad(value, parameters) for value in (loss, logprobs)]

    expected = gradients()
    hook = (
        register_module_full_backward_hook(lambda module, inputs, outputs: None)
        if everywhere
        else model.lm_head.register_full_backward_hook(lambda module, inputs, outputs: None)
    )
    try:
        found = gradients()
    finally:
        hook.remove()
    # The model computes its norms in float32.
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_a_reduction_may_be_any_real_number_that_a_float_holds(toy):
    batch = pack(SAMPLES)
    assert torch.equal(sft_loss(toy, batch, np.float32(2)), sft_loss(toy, batch, 2))
    with pytest.raises(ValueError, match="reduction must be a finite number above 0"):
        sft_loss(toy, batch, 10**400)
