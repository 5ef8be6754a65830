from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from treetrain.data.sample import Sample
from treetrain.packing.batch import pack
from treetrain.packing.recover import recover_sequences

GROUPS = st.sampled_from(["a", "b", None])
ROWS = st.lists(
    st.tuples(st.lists(st.integers(0, 2), max_size=6), GROUPS), min_size=1, max_size=8
).filter(lambda rows: any(tokens for tokens, _ in rows))


def recovered_tokens(batch):
    return [row.tolist() for row in recover_sequences(batch.packed.tokens[0], batch, per="token")]


@given(ROWS)
def test_every_sequence_is_recovered_in_the_callers_order(rows):
    batch = pack([Sample(tokens, group=group) for tokens, group in rows])
    assert recovered_tokens(batch) == [tokens for tokens, _ in rows]
    assert batch.indices.tolist() == list(range(len(rows)))


@given(ROWS)
def test_tree_tokens_are_distinct_prefixes_of_each_group(rows):
    batch = pack([Sample(tokens, group=group) for tokens, group in rows])
    prefixes = {(group, *tokens[: end + 1]) for tokens, group in rows for end in range(len(tokens))}
    assert batch.num_tokens == len(prefixes)


@given(ROWS, st.randoms())
def test_order_of_samples_changes_only_indices(rows, random):
    order = list(range(len(rows)))
    random.shuffle(order)
    weights = [np.arange(len(tokens)) % 2 + 0.25 for tokens, _ in rows]
    samples = [Sample(t, w, group=g) for (t, g), w in zip(rows, weights, strict=True)]
    batch, shuffled = pack(samples), pack([samples[index] for index in order])
    assert shuffled.num_tokens == batch.num_tokens
    values = recover_sequences(torch.tensor(batch.targets.weights), batch, per="target", fill=-1.0)
    moved = recover_sequences(
        torch.tensor(shuffled.targets.weights), shuffled, per="target", fill=-1.0
    )
    for place, index in enumerate(order):
        assert moved[place].tolist() == pytest.approx(values[index].tolist(), abs=1e-12)


def test_groups_do_not_merge_and_stand_in_order_of_appearance():
    batch = pack(
        [Sample([1, 2], group="b"), Sample([1, 2, 3], group="a"), Sample([1, 3], group="b")]
    )
    assert batch.packed.tokens.tolist() == [[1, 2, 3, 1, 2, 3]]
    assert batch.packed.depth_positions.tolist() == [[0, 1, 1, 0, 1, 2]]
    assert (batch.tree.parents < 0).sum() == 2


def test_samples_without_group_are_one_group():
    assert pack([Sample([1, 2, 3]), Sample([1, 2, 4])]).num_tokens == 4


def test_padding_goes_by_the_mask_and_a_real_token_with_the_pad_id_stays():
    pad = 0
    rows = [
        Sample([pad, pad, 1, 0, 2], attention_mask=[0, 0, 1, 1, 1]),
        Sample([1, 0, 2, pad, pad], attention_mask=[1, 1, 1, 0, 0]),
        Sample([1, 0, pad, pad, 3], attention_mask=[1, 1, 0, 0, 1]),
    ]
    batch = pack(rows)
    assert recovered_tokens(batch) == [[1, 0, 2], [1, 0, 2], [1, 0, 3]]
    assert batch.packed.tokens.tolist() == [[1, 0, 2, 3]]
    assert batch.targets.weights.tolist() == [3.0, 2.0, 1.0]


def test_empty_sequence_is_kept():
    batch = pack([[1, 2], [], [1, 2, 3]])
    assert recovered_tokens(batch) == [[1, 2], [], [1, 2, 3]]
    assert batch.num_sequences == 3


def test_keys_keep_equal_tokens_apart():
    same = pack([Sample([9, 9, 7], keys=[1, 2, 0]), Sample([9, 9, 7], keys=[1, 2, 0])])
    other = pack([Sample([9, 9, 7], keys=[1, 2, 0]), Sample([9, 9, 7], keys=[1, 3, 0])])
    assert (same.num_tokens, other.num_tokens) == (3, 5)


def test_group_without_keys_may_stand_beside_one_with_keys():
    batch = pack([Sample([1, 2], keys=[0, 5], group="a"), Sample([1, 2], group="b")])
    assert recovered_tokens(batch) == [[1, 2], [1, 2]]


def test_keys_for_some_samples_of_a_group_are_refused():
    with pytest.raises(ValueError, match=r"none for samples\[2\] of group 'a'"):
        pack([Sample([1]), Sample([1], keys=[0], group="a"), Sample([1], group="a")])


def test_no_samples_are_refused():
    with pytest.raises(ValueError, match="at least one sequence"):
        pack([])


def test_arrays_that_hold_no_rows_are_refused():
    for samples in (torch.tensor(3), torch.nested.nested_tensor([torch.ones(2)])):
        with pytest.raises(TypeError, match="samples must be a list of samples or of rows"):
            pack(samples)
    with pytest.raises(TypeError, match=r"samples\[0\]: tokens must be a dense tensor"):
        pack(torch.ones(2, 3, device="meta", dtype=torch.int64))


def test_wrong_token_names_its_sample():
    with pytest.raises(ValueError, match=r"samples\[1\]: tokens must be in 0"):
        pack([[1, 2], [1, -2]])


def test_trajectories_are_named_within_their_group():
    batch = pack([Sample([1], group="a", trajectory=1), Sample([1], group="b", trajectory=1), [1]])
    assert batch.trajectories == [("a", 1), ("b", 1), None]


def test_moving_to_a_device_moves_the_row_and_keeps_the_rest():
    batch = pack([[1, 2], [1, 3]])
    assert batch.to("cpu") is batch
    moved = batch.to("meta")
    assert moved.device.type == moved.target_tensors.tokens.device.type == "meta"
    assert moved.targets is batch.targets
