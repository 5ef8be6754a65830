"""What is trained with what weight: small cases of faults that were reported in public."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from treetrain.data.sample import Sample
from treetrain.losses.logprobs import sequence_logprobs
from treetrain.losses.policy import policy_loss
from treetrain.losses.sft import sft_loss, sft_terms
from treetrain.losses.window import measure_window
from treetrain.models.prepare import prepare
from treetrain.packing.batch import pack
from treetrain.packing.budget import pack_batches
from treetrain.partitioning.step import partitioned_step
from treetrain.testing.models import make_tiny_model
from treetrain.testing.trees import tree_family
from treetrain.tree.partition import partition_tree
from treetrain.verification.verify import verify
from treetrain.verification.widened import Widened

REDUCTIONS = ("path_mean", "sequence_mean", "token_mean", "trajectory_mean", "sum", 5.0)


@pytest.mark.parametrize("order", [1, -1])
def test_a_sequence_that_ends_inside_another_has_no_target_there(order):
    """Case 2. Source: verl-project/verl#6689."""
    sequences = [[1, 2, 3, 4], [1, 2, 3, 4, 5, 6]][::order]
    targets = pack(sequences).targets
    found = {
        (int(p), int(t)): float(w)
        for p, t, w in zip(targets.predictors, targets.tokens, targets.weights, strict=True)
    }
    assert found == {(0, 2): 2, (1, 3): 2, (2, 4): 2, (3, 5): 1, (4, 6): 1}
    assert verify(make_tiny_model("llama"), sequences).equal


def test_equal_sequences_keep_their_own_advantages(
    train_alone, gradients_of, assert_same_gradients
):
    """Case 3. Source: verl-project/verl#6689."""
    prefix, a, b = [1, 2, 3], [4, 5], [6, 7]
    sequences = [prefix + a, prefix + b, prefix + a]
    advantages = [1.0, -1.0, 0.5]
    own = [[0, 0, advantage, advantage] for advantage in advantages]
    model = make_tiny_model("llama")
    alone, gradients = train_alone(model, sequences, own)
    handle = prepare(model)
    samples = [
        Sample(sequence, [0, 0, 0, 1, 1], advantage=advantage)
        for sequence, advantage in zip(sequences, advantages, strict=True)
    ]
    batch = pack(samples)
    with torch.no_grad():
        logprobs = sequence_logprobs(model, batch)
    assert [len(row) for row in logprobs] == [4, 4, 4]
    assert torch.equal(logprobs[0], logprobs[2])
    assert not torch.equal(logprobs[0], logprobs[1])
    loss = policy_loss(model, batch, "sum", objective="plain").loss
    assert loss.item() == pytest.approx(alone, rel=1e-5)
    assert_same_gradients(gradients_of(model, loss), gradients, 1e-5)
    # As linear weights the two advantages of A are one of 1.5.
    weighted = [Sample(s, [0, *w]) for s, w in zip(sequences, own, strict=True)]
    merged = pack(weighted).targets
    assert sorted(merged.weights.tolist()) == [-1.0, -1.0, 1.5, 1.5]
    handle.undo()


def make_groups(named):
    """Sixteen sequences of four groups that share no token, with weights and trajectories."""
    rows = []
    for number, name in enumerate(("uneven", "star", "comb", "strict_prefix")):
        # A first token of its own keeps the groups apart where they are one tree.
        for place, tokens in enumerate(tree_family()[name][:4]):
            tokens = [50 + number, *tokens]
            weights = [(spot * 7 + place) % 3 / 2 for spot in range(len(tokens))]
            group = number if named else None
            rows.append(Sample(tokens, weights, group=group, trajectory=f"{number}.{place % 3}"))
    return rows


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_packing_and_accumulation_do_not_change_the_gradient(
    gradients_of, assert_same_gradients, reduction
):
    """Case 14. Source: modelscope/ms-swift#10117."""
    model = make_tiny_model("llama", dtype=torch.float64)
    prepare(model)
    ways = {
        "one tree": [pack(make_groups(named=False))],
        "four trees": [pack(make_groups(named=True))],
        "small rows": pack_batches(make_groups(named=True), max_tokens=25),
        "four steps": [pack(make_groups(named=True)[place::4]) for place in range(4)],
    }
    assert len(ways["small rows"]) >= 4
    found = {}
    with Widened():
        for name, batches in ways.items():
            window = measure_window(batches)
            losses = [sft_loss(model, batch, reduction, window=window) for batch in batches]
            found[name] = gradients_of(model, torch.stack(losses).sum())
        whole = ways["one tree"][0]
        for count in (3, 9):
            cut = partition_tree(whole.tree, whole.num_tokens // count)
            assert cut.num_partitions >= count
            model.zero_grad()
            partitioned_step(model, whole, cut, sft_terms(whole, reduction))
            found[f"{count} partitions"] = {
                name: parameter.grad.clone() for name, parameter in model.named_parameters()
            }
    for one, other in pairwise(found.values()):
        assert_same_gradients(one, other, 1e-10)


def test_how_many_sequences_a_trajectory_became_counts_as_the_reduction_says(train_alone):
    """Case 15. Source: rllm-org/rllm#512."""
    x = [[*range(1, 3 + step), 10 + step, 20] for step in range(3)] + [[5, 6, 7], [5, 6]]
    y = [[8, 9, 10, 11, 12]]
    samples = [Sample(tokens, trajectory="X") for tokens in x]
    samples += [Sample(tokens, trajectory="Y") for tokens in y]
    model = make_tiny_model("llama", dtype=torch.float64)

    def alone(sequences):
        return [train_alone(model, [s], [[1] * (len(s) - 1)])[0] for s in sequences]

    with Widened():
        losses_x, losses_y = alone(x), alone(y)
        lengths_x, length_y = [len(s) - 1 for s in x], len(y[0]) - 1
        prepare(model)
        found = {
            name: sft_loss(model, pack(samples), name).item()
            for name in ("path_mean", "sequence_mean", "token_mean", "trajectory_mean", "sum")
        }
    total = sum(losses_x) + losses_y[0]
    means = [loss / length for loss, length in zip(losses_x, lengths_x, strict=True)]
    assert found == {
        "path_mean": pytest.approx(total / 6, abs=1e-10),
        "sequence_mean": pytest.approx((sum(means) + losses_y[0] / length_y) / 6, abs=1e-10),
        "token_mean": pytest.approx(total / (sum(lengths_x) + length_y), abs=1e-10),
        "trajectory_mean": pytest.approx(
            (sum(losses_x) / sum(lengths_x) + losses_y[0] / length_y) / 2, abs=1e-10
        ),
        "sum": pytest.approx(total, abs=1e-10),
    }


def test_the_end_of_one_root_never_predicts_the_next_root():
    """Case 16. Source: verl-project/verl#6564."""
    sequences = [[1, 2], [7, 8]]
    for batch in (pack(sequences), pack([Sample(s, group=s[0]) for s in sequences])):
        tokens = batch.packed.tokens[0].tolist()
        targets = batch.targets
        found = {
            (tokens[int(p)], int(t))
            for p, t in zip(targets.predictors, targets.tokens, strict=True)
        }
        assert found == {(1, 2), (7, 8)}
    assert verify(make_tiny_model("llama"), sequences).equal
