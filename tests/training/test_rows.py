from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treetrain.data.sample import Sample
from treetrain.packing.batch import pack
from treetrain.training.config import TreeConfig
from treetrain.training.rows import hold_out, make_rows, order_windows, regroup

tokens = st.lists(st.integers(1, 2), min_size=1, max_size=8)
samples_of_groups = st.lists(
    st.builds(
        lambda ids, group, trajectory: Sample(ids, group=group, trajectory=trajectory),
        tokens,
        st.sampled_from(["a", "b", None]),
        st.sampled_from([0, 1, None]),
    ),
    min_size=1,
    max_size=12,
)


def names(samples):
    return Counter(sample.tokens.tobytes() for sample in samples)


@given(
    samples_of_groups,
    st.integers(1, 20),
    st.sampled_from(["group", "trajectory", "all"]),
    st.sampled_from(["partition", "split"]),
    st.sampled_from([None, 0, 5]),
)
def test_every_sequence_is_trained_once_an_epoch(samples, max_tokens, grouping, larger, seed):
    config = TreeConfig.model_validate(
        {"grouping": grouping, "max_tokens": max_tokens, "larger": larger}
    )
    rows = make_rows(samples, config, seed=seed)
    windows = order_windows(rows.batches, 1, seed=seed)
    for _ in range(2):
        epoch = [next(windows) for _ in rows.batches]
        assert names(s for window in epoch for row in window for s in row.samples) == names(samples)
    again = make_rows(samples, config, seed=seed)
    assert [row.indices.tolist() for row in rows.batches] == [
        row.indices.tolist() for row in again.batches
    ]
    for batch in rows.batches:
        if larger == "partition" and batch.num_tokens > max_tokens:
            assert rows.partitions[batch].num_partitions > 1
        elif larger == "split" and batch.num_tokens > max_tokens:
            assert batch.num_sequences == 1 or len(names(batch.samples)) < batch.num_sequences
        else:
            assert batch not in rows.partitions


@given(samples_of_groups)
def test_grouping_decides_what_is_shared_and_not_what_a_trajectory_is(samples):
    distinct = {
        "group": {(s.group, *s.tokens[:n].tolist()) for s in samples for n in range(1, len(s) + 1)},
        "all": {tuple(s.tokens[:n].tolist()) for s in samples for n in range(1, len(s) + 1)},
        "trajectory": {
            (
                (index,) if s.trajectory is None else (s.group, s.trajectory),
                *s.tokens[:n].tolist(),
            )
            for index, s in enumerate(samples)
            for n in range(1, len(s) + 1)
        },
    }
    before = [None if s.trajectory is None else (s.group, s.trajectory) for s in samples]
    for grouping, prefixes in distinct.items():
        batch = pack(regroup(samples, grouping))
        assert batch.num_tokens == len(prefixes)
        after = batch.trajectories
        same = [[one == other for other in before if other is not None] for one in before]
        assert same == [[one == other for other in after if other is not None] for one in after]


def test_held_out_groups_are_whole_chosen_by_the_seed_and_not_trained():
    samples = [Sample([index + 1], group=index % 10) for index in range(30)]
    kept, held = hold_out(samples, 0.2, seed=3)
    assert names(kept + held) == names(samples)
    groups = {sample.group for sample in held}
    assert len(groups) == 2
    assert not groups & {sample.group for sample in kept}
    assert hold_out(samples, 0.2, seed=3)[1] == held
    assert any({s.group for s in hold_out(samples, 0.2, seed=n)[1]} != groups for n in range(9))


def test_a_single_group_cannot_be_held_out():
    with pytest.raises(ValueError, match=r"must leave a group to train, got 0\.5 of 1 group; give"):
        hold_out([Sample([1, 2]), Sample([1, 3])], 0.5, seed=0)
