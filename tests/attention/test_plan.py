"""Kernel calls against visibility rebuilt from paths, for full attention, windows and chunks."""

from __future__ import annotations

import numpy as np
import pytest
from tests.attention.rows import cut_tree

from treetrain.attention.plan import Call, plan_calls
from treetrain.testing.trees import random_forest, tree_family
from treetrain.tree.build import build_prefix_tree
from treetrain.tree.prefix_tree import PrefixTree


def visibility(tree: PrefixTree, window: int | None, chunk: int | None) -> np.ndarray:
    visible = np.zeros((tree.num_tokens, tree.num_tokens), bool)
    for sequence in range(tree.num_sequences):
        path = tree.positions(sequence)
        for place, query in enumerate(path):
            first = 0
            if window is not None:
                first = max(first, place - window + 1)
            if chunk is not None:
                first = max(first, place // chunk * chunk)
            visible[query, path[first : place + 1]] = True
    return visible


def count_pairs(calls: list[Call], tokens: int) -> np.ndarray:
    counts = np.zeros((tokens, tokens), int)
    for call in calls:
        keys = np.concatenate([np.arange(start, end) for start, end in call.keys])
        block = np.ones((call.q_end - call.q_start, len(keys)), int)
        if call.causal:
            assert call.keys == ((call.q_start, call.q_end),)
            block = np.tril(block)
        if call.visible is not None:
            block = block * call.visible
        counts[np.arange(call.q_start, call.q_end)[:, None], keys[None, :]] += block
    return counts


def check(sequences: list[list[int]], window: int | None, chunk: int | None) -> None:
    tree = build_prefix_tree(sequences)
    calls = plan_calls(tree, window=window, chunk=chunk)
    assert np.array_equal(
        count_pairs(calls, tree.num_tokens), visibility(tree, window, chunk).astype(int)
    ), (sequences, window, chunk)
    local = np.zeros(tree.num_tokens, int)
    for call in calls:
        local[call.q_start : call.q_end] += call.local
    assert (local == 1).all()
    first_full = next((place for place, call in enumerate(calls) if not call.local), len(calls))
    assert not any(call.local for call in calls[first_full:])


@pytest.mark.parametrize("window", [None, 1, 4, 40])
@pytest.mark.parametrize("name", tree_family())
def test_family_calls_are_the_visibility_and_hold_no_pair_twice(
    name: str, window: int | None
) -> None:
    check(tree_family()[name], window, None)


def test_calls_of_random_forests_are_the_visibility_and_hold_no_pair_twice() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        sequences = [
            rng.integers(0, 3, rng.integers(0, 14)).tolist() for _ in range(rng.integers(1, 9))
        ]
        window = None if rng.random() < 0.5 else int(rng.integers(1, 12))
        chunk = None if rng.random() < 0.5 else int(rng.integers(1, 12))
        check(sequences, window, chunk)


def test_calls_of_large_forests_with_long_runs_are_the_visibility() -> None:
    rng = np.random.default_rng(1)
    for seed in range(6):
        stem = rng.integers(0, 50, 400).tolist()
        sequences = [
            [*stem[: int(rng.integers(0, 400))], *rng.integers(0, 50, int(rng.integers(1, 300)))]
            for _ in range(12)
        ]
        for window, chunk in [(None, None), (64, None), (300, None), (None, 128), (100, 256)]:
            check(sequences, window, chunk)
        check(random_forest(np.random.default_rng(seed)), None, None)


def test_a_window_longer_than_every_path_changes_nothing() -> None:
    tree = build_prefix_tree(tree_family()["uneven"])
    wide = plan_calls(tree, window=1000, chunk=1000)
    assert [(c.q_start, c.q_end, c.keys) for c in wide] == [
        (c.q_start, c.q_end, c.keys) for c in plan_calls(tree)
    ]


def test_keys_outside_the_window_are_not_computed() -> None:
    tree = build_prefix_tree([list(range(4096))])
    full = sum(call.pairs for call in plan_calls(tree))
    windowed = sum(call.pairs for call in plan_calls(tree, window=256))
    assert windowed <= 0.25 * full


def test_short_leaves_share_calls() -> None:
    stem = list(range(100, 612))
    tree = build_prefix_tree([[*stem, leaf, 1, 2, 3] for leaf in range(64)])
    assert len(plan_calls(tree)) <= 8


def test_equal_masks_are_one_array() -> None:
    tree = build_prefix_tree([list(range(4096))])
    calls = plan_calls(tree, window=256)
    masks = [call.visible for call in calls if call.visible is not None]
    assert len(masks) > 8
    assert len({id(mask) for mask in masks}) <= 4


@pytest.mark.parametrize("layer", [{}, {"window": 5}, {"chunk": 7}, {"window": 60}], ids=str)
def test_calls_of_rows_with_ancestors_are_the_visibility_of_their_own_tokens(
    layer: dict[str, int],
) -> None:
    rng = np.random.default_rng(2)
    stem = rng.integers(0, 9, 250).tolist()
    long = [[*stem[: int(rng.integers(0, 250))], *rng.integers(0, 9, 60)] for _ in range(12)]
    for sequences in (*(random_forest(rng) for _ in range(15)), long):
        whole = build_prefix_tree(sequences)
        cuts = np.flatnonzero(rng.random(whole.num_tokens) < rng.choice([0.02, 0.2])).tolist()
        expected = visibility(whole, layer.get("window"), layer.get("chunk")).astype(int)
        for row in cut_tree(whole, cuts, rng):
            tree, ancestors = row.tree.tree, len(row.path)
            calls = plan_calls(tree, ancestors=ancestors, **layer)
            counts = count_pairs(calls, tree.num_tokens)
            assert not counts[:ancestors].any()
            tokens = [*row.path, *row.own]
            assert np.array_equal(counts[ancestors:], expected[np.ix_(row.own, tokens)])
            local = [call for call in calls if call.local]
            assert calls[: len(local)] == local
            assert [call.q_start for call in local] == [ancestors, *(c.q_end for c in local[:-1])]
            assert local[-1].q_end == tree.num_tokens


@pytest.mark.parametrize("layer", [{}, {"window": 256}], ids=str)
@pytest.mark.parametrize("leaf", [4, 30, 128])
def test_rows_cost_what_the_whole_tree_costs(leaf: int, layer: dict[str, int]) -> None:
    """A row adds its gateway's calls and next to no pairs."""
    rng = np.random.default_rng(leaf)
    stem = rng.integers(0, 50, 600).tolist()
    sequences = [
        [*stem[: int(rng.integers(0, 600))], *rng.integers(0, 50, leaf)] for _ in range(40)
    ]
    tree = build_prefix_tree(sequences)
    rows = cut_tree(tree, range(250, tree.num_tokens, 250), rng)
    whole = plan_calls(tree, **layer)
    parts = [
        call for row in rows for call in plan_calls(row.tree.tree, ancestors=len(row.path), **layer)
    ]
    assert len(rows) >= 3
    assert sum(call.pairs for call in parts) <= 1.05 * sum(call.pairs for call in whole)
    assert len(parts) <= len(whole) + 4 * len(rows)


def test_what_goes_on_from_the_ancestors_shares_no_tile_with_what_hangs_far_above() -> None:
    """60 tokens at the end of a path and 60 near its root would waste 60 x 990 pairs."""
    tree = build_prefix_tree([list(range(1060)), [*range(10), *range(2000, 2060)]])
    calls = plan_calls(tree, ancestors=1000)
    assert sum(call.pairs for call in calls) == sum(range(1001, 1061)) + sum(range(11, 71))
    near = plan_calls(
        build_prefix_tree([list(range(1060)), [*range(990), *range(30)]]), ancestors=1000
    )
    assert len([call for call in near if call.local]) == 1
