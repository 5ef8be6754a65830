from __future__ import annotations

import numpy as np
import pytest
import torch

from treetrain.data.sample import Sample
from treetrain.losses.policy import policy_loss
from treetrain.losses.window import measure_window
from treetrain.packing.batch import pack

# One sequence twice with two advantages, a strict prefix, per-token advantages, a mask, an empty
# sequence and one that trains nothing and has no advantage.
SAMPLES = [
    Sample([1, 2, 3, 4], advantage=1.0),
    Sample([1, 2, 5, 6], [0, 0, 1, 1], advantage=-1.0),
    Sample([1, 2, 3, 4], advantage=0.5),
    Sample([1, 2, 3], [0, 1, 0.5], advantage=[9.0, -0.3, 0.7]),
    Sample([1, 2, 5], [0, 0, 0]),
    Sample([]),
]
RATIO = {"clip_low": 0.1, "clip_high": 0.2, "old_logprobs": "drifted"}
KL = {"kl_coefficient": 0.3, "reference_logprobs": "drifted"}
CHOICES = {
    "plain": {"objective": "plain"},
    "plain, entropy": {"objective": "plain", "entropy_coefficient": 0.2},
    "plain, KL": {"objective": "plain", **KL},
    "ppo": {"objective": "ppo", **RATIO},
    "ppo, entropy": {"objective": "ppo", **RATIO, "entropy_coefficient": 0.2},
    "grpo": {"objective": "grpo", **RATIO, **KL},
    "grpo, all": {"objective": "grpo", **RATIO, **KL, "entropy_coefficient": -0.1},
}
EACH_CHOICE = pytest.mark.parametrize("choice", list(CHOICES))


def drifted(model, samples, alone, seed):
    """Log-probabilities of another policy: those of the model, moved by up to 0.4."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for sample in samples:
        logprobs = alone(model, sample.tokens)[0].detach()
        noise = torch.rand(len(logprobs), generator=generator, dtype=torch.float64)
        rows.append(logprobs + 0.8 * (noise - 0.5))
    return rows


def fill_in(choice, model, samples, alone):
    arguments = dict(CHOICES[choice])
    for seed, name in enumerate(("old_logprobs", "reference_logprobs")):
        if name in arguments:
            arguments[name] = drifted(model, samples, alone, seed)
    return arguments


def baseline_loss(model, samples, alone, *, objective, temperature=1.0, **arguments):
    """Sum of the losses token by token, from the list of sequences."""
    total = torch.zeros((), dtype=torch.float64)
    for index, sample in enumerate(samples):
        logprobs, entropies = alone(model, sample.tokens, temperature)
        for place in range(1, len(sample)):
            weight = sample.weights[place]
            if weight == 0:
                continue
            advantage = sample.advantage
            advantage = advantage if isinstance(advantage, float) else advantage[place]
            logp = logprobs[place - 1]
            if objective == "plain":
                loss = -advantage * logp
            else:
                ratio = torch.exp(logp - arguments["old_logprobs"][index][place - 1])
                low, high = 1 - arguments["clip_low"], 1 + arguments["clip_high"]
                inside = min(max(ratio.item(), low), high)
                clipped = (
                    ratio if inside == ratio.item() else torch.tensor(inside, dtype=torch.float64)
                )
                loss = -min(ratio * advantage, clipped * advantage)
            if "reference_logprobs" in arguments:
                gap = arguments["reference_logprobs"][index][place - 1] - logp
                loss = loss + arguments["kl_coefficient"] * (torch.exp(gap) - gap - 1)
            loss = loss - arguments.get("entropy_coefficient", 0.0) * entropies[place - 1]
            total = total + weight * loss
    return total


@EACH_CHOICE
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_loss_and_gradients_are_those_of_separate_sequences(
    toy, alone, gradients, assert_equal, choice, temperature
):
    arguments = fill_in(choice, toy, SAMPLES, alone)
    found = policy_loss(toy, pack(SAMPLES), "sum", temperature=temperature, **arguments)
    expected = baseline_loss(toy, SAMPLES, alone, temperature=temperature, **arguments)
    assert_equal([found.loss], [expected])
    assert_equal(gradients(found.loss, toy), gradients(expected, toy))
    assert found.targets == 3 + 2 + 3 + 2


@EACH_CHOICE
@pytest.mark.parametrize(
    "reduction", ["path_mean", "sequence_mean", "token_mean", "trajectory_mean", 7]
)
def test_gradient_does_not_depend_on_how_a_step_is_cut(
    toy, alone, gradients, assert_equal, choice, reduction
):
    arguments = fill_in(choice, toy, SAMPLES, alone)
    whole = policy_loss(toy, pack(SAMPLES), reduction, **arguments).loss
    parts = [[4, 2], [0, 1, 5], [3]]
    batches = [pack([SAMPLES[index] for index in part]) for part in parts]
    window = measure_window(batches)
    total = 0
    for part, batch in zip(parts, batches, strict=True):
        rows = {
            name: [value[index] for index in part] if isinstance(value, list) else value
            for name, value in arguments.items()
        }
        total = total + policy_loss(toy, batch, reduction, window=window, **rows).loss
    assert_equal([total], [whole])
    assert_equal(gradients(total, toy), gradients(whole, toy))


def test_advantages_of_equal_sequences_add_up_and_none_is_overwritten(
    toy, alone, gradients, assert_equal
):
    prompt, a, b = [1, 2], [3, 4], [5]
    batch = pack([prompt + a, prompt + b, prompt + a])
    found = policy_loss(toy, batch, "sum", objective="plain", advantages=[1, -1, 0.5])
    merged = -1.5 * alone(toy, prompt + a)[0].sum() + alone(toy, prompt + b)[0].sum()
    assert_equal(gradients(found.loss, toy), gradients(merged, toy))


def test_advantages_passed_in_take_the_place_of_the_samples_own(toy, gradients, assert_equal):
    own = pack([Sample([1, 2, 3], advantage=[0, 2, 3.0]), Sample([1, 4], advantage=-1)])
    other = pack([Sample([1, 2, 3], advantage=7), Sample([1, 4], advantage=7)])
    expected = policy_loss(toy, own, "sum", objective="plain").loss
    found = policy_loss(
        toy, other, "sum", objective="plain", advantages=[torch.tensor([2.0, 3.0]), -1]
    ).loss
    assert_equal(gradients(found, toy), gradients(expected, toy))


def test_current_policy_has_ratio_one_and_the_gradient_of_the_plain_loss(
    toy, gradients, assert_equal
):
    batch = pack(SAMPLES)
    found = policy_loss(
        toy, batch, "sum", objective="ppo", old_logprobs="current", clip_low=0.1, clip_high=0.1
    )
    plain = policy_loss(toy, batch, "sum", objective="plain")
    assert_equal(gradients(found.loss, toy), gradients(plain.loss, toy))
    assert found.statistics["ratio"].item() == 1
    assert found.statistics["clip_fraction"].item() == 0
    assert found.statistics["old_kl"].item() == 0


def test_statistics_are_means_over_trained_edges_without_gradients(toy, alone):
    samples = [Sample([1, 2, 3], advantage=1.0), Sample([1, 4], advantage=-1.0)]
    old = [alone(toy, sample.tokens)[0].detach() for sample in samples]
    old[0][1] -= 1.0  # ratio e, clipped for advantage 1
    old[1][0] -= 1.0  # ratio e, not clipped for advantage -1
    found = policy_loss(
        toy,
        pack(samples),
        "sum",
        objective="grpo",
        old_logprobs=old,
        clip_low=0.2,
        clip_high=0.2,
        reference_logprobs=old,
        kl_coefficient=0.0,
        entropy_coefficient=0.1,
    )
    e = torch.e
    expected = {
        "ratio": (1 + e + e) / 3,
        "clip_fraction": 1 / 3,
        "old_kl": 2 * (1 / e + 1 - 1) / 3,
        "reference_kl": 2 * (1 / e + 1 - 1) / 3,
        "logprob": torch.cat([alone(toy, sample.tokens)[0] for sample in samples]).mean().item(),
        "entropy": torch.cat([alone(toy, sample.tokens)[1] for sample in samples]).mean().item(),
    }
    assert {name: value.item() for name, value in found.statistics.items()} == pytest.approx(
        expected, abs=1e-10
    )
    assert not any(value.requires_grad for value in found.statistics.values())


def test_values_of_untrained_edges_are_not_read(toy, gradients):
    batch = pack([Sample([1, 2, 3], [0, 0, 1], advantage=1.0)])
    found = policy_loss(
        toy,
        batch,
        "sum",
        objective="ppo",
        old_logprobs=[[float("nan"), -1.0]],
        clip_low=0.2,
        clip_high=0.2,
    )
    assert all(gradient.isfinite().all() for gradient in gradients(found.loss, toy))


def test_batch_that_trains_nothing_has_loss_zero_and_no_statistics(toy):
    batch = pack([Sample([1, 2, 3], [0, 0, 0])])
    for arguments in ({"objective": "plain"}, {"objective": "plain", "entropy_coefficient": 1.0}):
        found = policy_loss(toy, batch, "token_mean", **arguments)
        assert (found.loss.item(), found.targets, found.statistics) == (0, 0, {})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"objective": "reinforce"}, "objective must be 'plain', 'ppo' or 'grpo', got 'reinforce'"),
        ({"objective": "plain", "clip_low": 0.1}, "clip_low must not be given for objective"),
        ({"objective": "ppo"}, "old_logprobs must be given for objective 'ppo'.*'current'"),
        ({"objective": "ppo", "old_logprobs": "current"}, "clip_low must be given"),
        (
            {"objective": "ppo", "old_logprobs": "current", "clip_low": 0.1, "clip_high": -0.1},
            "clip_high must be at least 0",
        ),
        ({"objective": "plain", "kl_coefficient": 0.1}, "reference_logprobs must be given"),
        ({"objective": "plain", "reference_logprobs": [[0, 0]]}, "kl_coefficient must be given"),
        (
            {"objective": "grpo", "old_logprobs": "current", "clip_low": 0.1, "clip_high": 0.1},
            "reference_logprobs must be given",
        ),
        ({"objective": "plain", "advantages": [1, 2]}, "one entry per sequence of the batch, 1"),
        ({"objective": "plain", "advantages": [[1, 2, 3]]}, r"advantages\[0\] must have one value"),
        (
            {"objective": "plain", "advantages": [[1, float("inf")]]},
            r"advantages\[0\] must be finite where the token is trained, got inf at index 1",
        ),
        (
            {"objective": "ppo", "old_logprobs": [0.5], "clip_low": 0.1, "clip_high": 0.1},
            r"old_logprobs\[0\] must have one value per edge, \[2\], got shape \(\)",
        ),
    ],
)
def test_wrong_arguments_are_refused(toy, arguments, message):
    batch = pack([Sample([1, 2, 3], advantage=1.0)])
    with pytest.raises(ValueError, match=message):
        policy_loss(toy, batch, "sum", **arguments)


def test_missing_advantage_names_its_sample(toy):
    batch = pack([Sample([1, 2], advantage=1.0), Sample([1, 3], source="data.jsonl:2")])
    with pytest.raises(ValueError, match=r"got none for samples\[1\] \(data\.jsonl:2\)"):
        policy_loss(toy, batch, "sum", objective="plain")


def test_inputs_that_are_no_rows_are_refused(toy):
    batch = pack([[1, 2, 3], [1, 2, 4]])
    ratio = {"clip_low": 0.1, "clip_high": 0.2}
    with pytest.raises(ValueError, match="old_logprobs must be 'current'"):
        policy_loss(
            toy, batch, "sum", objective="ppo", advantages=[1, 2], old_logprobs="curent", **ratio
        )
    with pytest.raises(ValueError, match="advantages must be one row per sequence, got a dict"):
        policy_loss(toy, batch, "sum", objective="plain", advantages={0: 1.0, 1: 2.0})
    with pytest.raises(ValueError, match="kl_coefficient must be finite, got nan"):
        policy_loss(
            toy,
            batch,
            "sum",
            objective="plain",
            advantages=[1, 2],
            reference_logprobs=[[0, 0], [0, 0]],
            kl_coefficient=float("nan"),
        )


@pytest.mark.parametrize(
    "rows",
    [
        {2.0, 1.0},
        {2.0: 0, 1.0: 0}.keys(),
        np.array(1.0),
        torch.tensor(1.0),
        ["1", "2"],
        np.array(["1", "2"]),
        [True, False],
        torch.tensor([True, False]),
        [[1.0, True], [1.0, 2.0]],
        [["1", 2.0], [1.0, 2.0]],
        [np.ma.array([1.0, 2.0], mask=[0, 1]), [1.0, 2.0]],
        torch.ones(2, 2, device="meta"),
    ],
)
def test_rows_without_order_or_numbers_are_refused(toy, rows):
    batch = pack([[1, 2, 3], [1, 2, 4]])
    ratio = {"clip_low": 0.1, "clip_high": 0.2}
    kl = {"kl_coefficient": 0.1}
    for name, others in (
        ("advantages", {"objective": "plain"}),
        ("old_logprobs", {"objective": "ppo", "advantages": [1, 2], **ratio}),
        ("reference_logprobs", {"objective": "plain", "advantages": [1, 2], **kl}),
    ):
        with pytest.raises(TypeError, match=rf"{name}(\[\d\])? must (be one row|hold numbers)"):
            policy_loss(toy, batch, "sum", **others, **{name: rows})


def test_a_ratio_that_overflows_has_a_gradient_of_zero_where_the_clip_or_no_advantage_decides(toy):
    batch = pack([Sample([1, 2, 3]), Sample([1, 4])])
    found = policy_loss(
        toy,
        batch,
        "sum",
        objective="ppo",
        advantages=[1.0, 0.0],
        old_logprobs=[[-2000.0, -2000.0], [-2000.0]],
        clip_low=0.1,
        clip_high=0.25,
    )
    assert found.loss.item() == -2.5
    gradients = torch.autograd.grad(found.loss, list(toy.parameters()), allow_unused=True)
    assert all(grad is None or not grad.any() for grad in gradients)


def test_logarithms_of_no_probability_are_refused(toy):
    batch = pack([Sample([1, 2, 3], advantage=1.0)])
    with pytest.raises(ValueError, match=r"reference_logprobs\[0\] must be .* at most 0, got 1000"):
        policy_loss(
            toy,
            batch,
            "sum",
            objective="plain",
            reference_logprobs=[[-1.0, 1e4]],
            kl_coefficient=0.1,
        )


def test_a_temperature_at_which_logits_overflow_is_refused(toy):
    batch = pack([Sample([1, 2, 3], advantage=1.0)])
    with pytest.raises(ValueError, match=r"temperature must be at least .*, got 1e-300"):
        policy_loss(toy, batch, "sum", objective="plain", temperature=1e-300)


@pytest.mark.parametrize("name", ["entropy_coefficient", "temperature"])
def test_a_number_that_no_float_holds_is_named(toy, name):
    batch = pack([Sample([1, 2, 3], advantage=1.0)])
    with pytest.raises(ValueError, match=f"{name} must be a number that a float holds"):
        policy_loss(toy, batch, "sum", objective="plain", **{name: 10**400})


def test_recorded_log_probabilities_are_those_of_the_samples(toy, alone, gradients, assert_equal):
    old = drifted(toy, SAMPLES, alone, 0)
    recorded = [
        Sample(
            sample.tokens,
            sample.weights,
            advantage=sample.advantage,
            # The first token has no predictor, so that what stands there is not read.
            logprobs=[7.0, *row.tolist()] if len(sample) and sample.weights[1:].any() else None,
        )
        for sample, row in zip(SAMPLES, old, strict=True)
    ]
    ratio = {"objective": "ppo", "clip_low": 0.1, "clip_high": 0.2}
    found = policy_loss(toy, pack(recorded), "sum", old_logprobs="recorded", **ratio)
    expected = policy_loss(toy, pack(SAMPLES), "sum", old_logprobs=old, **ratio)
    assert_equal(gradients(found.loss, toy), gradients(expected.loss, toy))


def test_a_sequence_without_recorded_log_probabilities_is_named(toy):
    recorded = Sample([1, 2], advantage=1.0, logprobs=[0.0, -1.0])
    batch = pack([recorded, Sample([1, 3], advantage=1.0, source="data.jsonl:2")])
    with pytest.raises(ValueError, match=r"none recorded for samples\[1\] \(data\.jsonl:2\)"):
        policy_loss(
            toy,
            batch,
            "sum",
            objective="ppo",
            old_logprobs="recorded",
            clip_low=0.1,
            clip_high=0.1,
        )
