from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.losses.random_parts import cut_batch, rows_of

from treetrain.data.sample import Sample
from treetrain.losses.logprobs import (
    part_logprobs,
    sequence_logprobs,
    sequence_logprobs_and_entropies,
)
from treetrain.models.prepare import prepare
from treetrain.packing.batch import pack
from treetrain.packing.recover import recover_edges, split_edges
from treetrain.testing.models import make_tiny_model

SEQUENCES = [[1, 2, 3, 4, 5], [], [1, 2, 3, 6, 7], [9], [1, 2, 3, 6, 7, 8, 9], [1, 2, 3, 6, 7]]


@pytest.mark.parametrize("chunk_tokens", [1, 2, None])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_values_and_gradients_are_those_of_each_sequence_alone(
    toy, alone, gradients, assert_equal, chunk_tokens, temperature
):
    logprobs, entropies = sequence_logprobs_and_entropies(
        toy, pack(SEQUENCES), temperature=temperature, chunk_tokens=chunk_tokens
    )
    baseline = [alone(toy, tokens, temperature) for tokens in SEQUENCES]
    assert_equal(logprobs, [pair[0] for pair in baseline])
    assert_equal(entropies, [pair[1] for pair in baseline])
    scales = torch.linspace(-1.0, 2.0, len(SEQUENCES), dtype=torch.float64)

    def total(rows, others):
        terms = zip(rows, others, scales, strict=True)
        return sum((a * scale + b * scale**2).sum() for a, b, scale in terms)

    assert_equal(
        gradients(total(logprobs, entropies), toy),
        gradients(total(*zip(*baseline, strict=True)), toy),
    )


@given(st.lists(st.lists(st.integers(0, 1), max_size=6), min_size=1, max_size=6))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_set_of_sequences_gives_the_values_of_each_alone(toy, alone, assert_equal, sequences):
    found = sequence_logprobs(toy, pack(sequences), chunk_tokens=2)
    assert_equal(found, [alone(toy, tokens)[0] for tokens in sequences])


def test_trained_targets_only_leave_the_others_at_zero(toy, alone, assert_equal):
    batch = pack([Sample([1, 2, 3, 4], [0, 0, 1, 0]), Sample([1, 2, 5], [1, 1, 0])])
    found = sequence_logprobs(toy, batch, targets="trained")
    first, second = (alone(toy, sample.tokens)[0] for sample in batch.samples)
    expected = [
        first * torch.tensor([1, 1, 0]),  # 2 is trained by the other sequence
        second * torch.tensor([1, 0]),
    ]
    assert_equal(found, expected)


def test_prepared_model_gives_the_values_of_the_untouched_one():
    untouched, model = make_tiny_model("llama"), make_tiny_model("llama")
    prepare(model)
    found = sequence_logprobs(model, pack(SEQUENCES), temperature=0.8)
    for tokens, logprobs in zip(SEQUENCES, found, strict=True):
        if len(tokens) < 2:
            assert len(logprobs) == 0
            continue
        ids = torch.tensor(tokens)
        logits = untouched(input_ids=ids[None]).logits[0, :-1] / 0.8
        expected = logits.log_softmax(-1).gather(1, ids[1:, None])[:, 0]
        assert (logprobs - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_unknown_choice_of_targets_is_refused(toy):
    with pytest.raises(ValueError, match="targets must be 'all' or 'trained', got 'some'"):
        sequence_logprobs(toy, pack([[1, 2]]), targets="some")


@pytest.mark.parametrize("targets", ["all", "trained"])
@pytest.mark.parametrize("seed", range(4))
def test_values_of_parts_put_together_are_those_of_the_whole(
    toy, gradients, assert_equal, targets, seed
):
    samples = [Sample(row, [index % 3 for index in range(len(row))]) for row in SEQUENCES]
    batch = pack(samples)
    every = targets == "all"
    hidden = toy.hidden_states(batch.packed)
    count = len(batch.all_targets if every else batch.targets)
    values = torch.full((2, count), float("nan"), dtype=torch.float64)
    for part in cut_batch(batch, 3, seed, untrained=every):
        found = part_logprobs(
            toy, rows_of(hidden, part), part, temperature=0.6, chunk_tokens=2, entropies=True
        )
        places = torch.tensor(part.part.places)
        values = values.index_copy(1, places, torch.stack(found))
    chosen, tensors = (
        (batch.all_targets, batch.all_target_tensors)
        if every
        else (batch.targets, batch.target_tensors)
    )
    ours = [split_edges(recover_edges(row, chosen, tensors), chosen) for row in values]
    theirs = sequence_logprobs_and_entropies(toy, batch, temperature=0.6, targets=targets)
    for one, other in zip(ours, theirs, strict=True):
        assert_equal(one, other)

    def total(logprobs, entropies):
        return sum(row.square().sum() for row in (*logprobs, *entropies))

    assert_equal(gradients(total(*ours), toy), gradients(total(*theirs), toy))
