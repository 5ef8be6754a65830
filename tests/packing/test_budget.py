from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treetrain.data.sample import Sample
from treetrain.packing.batch import pack
from treetrain.packing.budget import pack_batches
from treetrain.packing.recover import recover_sequences

ROWS = st.lists(
    st.tuples(st.lists(st.integers(0, 1), max_size=7), st.sampled_from(["a", "b", "c"])),
    min_size=1,
    max_size=14,
)


@given(ROWS, st.integers(1, 12))
def test_batches_hold_each_sample_once_within_the_budget(rows, max_tokens):
    batches = pack_batches([Sample(t, group=g) for t, g in rows], max_tokens=max_tokens)
    found = {}
    for batch in batches:
        recovered = recover_sequences(batch.packed.tokens[0], batch, per="token")
        for index, tokens in zip(batch.indices.tolist(), recovered, strict=True):
            assert index not in found
            found[index] = tokens.tolist()
        if batch.exceeds_budget:
            # Equal sequences cost nothing more, so they may share it.
            assert len({tuple(rows[index][0]) for index in batch.indices}) == 1
            assert batch.num_tokens > max_tokens
        else:
            assert batch.num_tokens <= max_tokens
    assert [found[index] for index in range(len(rows))] == [tokens for tokens, _ in rows]


@given(ROWS, st.integers(1, 12))
def test_duplicated_tokens_are_what_splitting_added(rows, max_tokens):
    samples = [Sample(t, group=g) for t, g in rows]
    batches = pack_batches(samples, max_tokens=max_tokens)
    assert sum(batch.num_tokens - batch.duplicated_tokens for batch in batches) == (
        pack(samples).num_tokens
    )


@given(ROWS, st.integers(1, 12))
def test_groups_that_are_not_to_be_split_stay_whole(rows, max_tokens):
    samples = [Sample(t, group=g) for t, g in rows]
    batches = pack_batches(samples, max_tokens=max_tokens, split_groups=False)
    assert sum(batch.num_tokens for batch in batches) == pack(samples).num_tokens
    assert sum(batch.duplicated_tokens for batch in batches) == 0
    homes = {}
    for place, batch in enumerate(batches):
        assert batch.exceeds_budget == (batch.num_tokens > max_tokens)
        for sample in batch.samples:
            assert homes.setdefault(sample.group, place) == place
    assert sum(batch.num_sequences for batch in batches) == len(rows)


def test_groups_stay_whole_where_they_fit():
    samples = [Sample([group, place], group=group) for place in (5, 6) for group in (1, 2, 3)]
    batches = pack_batches(samples, max_tokens=6)
    assert [batch.indices.tolist() for batch in batches] == [[0, 1, 3, 4], [2, 5]]
    assert [batch.duplicated_tokens for batch in batches] == [0, 0]


def test_too_long_a_sequence_is_a_batch_of_its_own():
    batches = pack_batches([[1, 2], [3] * 9, [1, 4]], max_tokens=4)
    assert sorted((b.indices.tolist(), b.exceeds_budget) for b in batches) == [
        ([0, 2], False),
        ([1], True),
    ]


def test_budget_below_one_is_refused():
    with pytest.raises(ValueError, match="max_tokens must be at least 1, got 0"):
        pack_batches([[1]], max_tokens=0)
