from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treetrain.data.sample import Sample
from treetrain.report.inspection import DEFAULT_SHAPE, PAYS_FROM, inspect_samples
from treetrain.tree.metrics import ModelShape

EXAMPLE = [[1, 2, 3, 4, 5], [1, 2, 3, 6, 7], [1, 2, 3, 6, 7, 8, 9]]


def test_the_worked_example_has_its_counts():
    found = inspect_samples([Sample(tokens) for tokens in EXAMPLE])
    assert (found.total.flat_tokens, found.total.tree_tokens) == (17, 9)
    assert (found.total.attention_pairs_flat, found.total.attention_pairs_tree) == (58, 37)
    assert (found.targets, found.targets_flat) == (8, 14)


def test_groups_share_nothing_and_are_summed():
    both = inspect_samples([Sample(t, group=g) for g in ("a", "b") for t in EXAMPLE])
    assert [count.group for count in both.groups] == ["a", "b"]
    assert (both.total.flat_tokens, both.total.tree_tokens, both.total.roots) == (34, 18, 2)
    assert both.total.depth_max == 7
    assert both.targets == 16
    assert both.token_reduction_mean == pytest.approx(17 / 9, abs=1e-10)


def test_a_first_token_is_no_target_and_a_token_of_weight_zero_neither():
    found = inspect_samples(
        [Sample([1, 2, 3], [1, 0, 1]), Sample([1, 2, 4], [1, 1, 0]), Sample([])]
    )
    assert (found.targets, found.targets_flat) == (2, 2)


def test_keys_keep_equal_tokens_apart():
    found = inspect_samples([Sample([5, 6], keys=[1, 1]), Sample([5, 6], keys=[2, 2])])
    assert found.total.tree_tokens == 4
    with pytest.raises(
        ValueError,
        match=r"^b:1: samples of one group must all .* none for samples\[1\] of group None",
    ):
        inspect_samples([Sample([5], keys=[1]), Sample([5], source="b:1")])


def test_sharing_of_a_twentieth_does_not_pay_and_of_nine_tenths_does():
    fresh = np.arange(10_000)
    little = [Sample(np.concatenate([[1] * 10, fresh[n * 100 : n * 100 + 90]])) for n in range(2)]
    found = inspect_samples(little)
    assert found.total.token_reduction == pytest.approx(200 / 190, abs=1e-10)
    assert not found.pays
    assert "does not pay" in found.reason
    assert "1.05" in found.reason
    much = [Sample(np.concatenate([[1] * 90, fresh[n * 100 : n * 100 + 10]])) for n in range(8)]
    assert inspect_samples(much).pays


def test_the_bound_decides_not_the_token_reduction():
    # What is shared stands at the beginning, where attention costs least.
    fresh = np.arange(100_000)
    samples = [
        Sample(np.concatenate([[1] * 1000, fresh[n * 3000 : n * 3000 + 2000]])) for n in range(8)
    ]
    only_attention = ModelShape(parameters=0, layers=1, heads=1, head_size=1)
    only_parameters = ModelShape(parameters=1, layers=0, heads=0, head_size=0)
    assert inspect_samples(samples, shape=only_parameters).flop_bound > PAYS_FROM
    assert inspect_samples(samples, shape=only_parameters).pays
    assert inspect_samples(samples, shape=only_attention).flop_bound < PAYS_FROM
    assert not inspect_samples(samples, shape=only_attention).pays


def test_a_saving_that_needs_no_tree_is_said():
    chain = [Sample(range(100 * n)) for n in range(1, 6)]
    assert "training their targets in the longest" in inspect_samples(chain).reason
    star = [Sample([1] * 90 + list(range(10 * n, 10 * n + 10))) for n in range(2, 8)]
    assert "training their targets in the longest" not in inspect_samples(star).reason


def test_no_samples_are_refused():
    with pytest.raises(ValueError, match="samples must hold at least one sequence"):
        inspect_samples([])


@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), max_size=6), st.integers(0, 1)
        ),
        min_size=1,
        max_size=8,
    )
)
def test_targets_are_the_distinct_trained_prefixes(rows):
    samples = [
        Sample([t for t, _ in pairs], [w for _, w in pairs], group=group) for pairs, group in rows
    ]
    prefixes = {
        (sample.group, tuple(sample.tokens[: end + 1].tolist()))
        for sample in samples
        for end in range(1, len(sample))
        if sample.weights[end]
    }
    found = inspect_samples(samples)
    assert found.targets == len(prefixes)
    assert found.targets_flat == sum(int(np.count_nonzero(s.weights[1:])) for s in samples)
    assert found.shape == DEFAULT_SHAPE
