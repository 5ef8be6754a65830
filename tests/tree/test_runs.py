"""Runs and slices against the definition of visibility, rebuilt here from paths alone."""

from __future__ import annotations

import numpy as np
import pytest

from treetrain.testing.trees import random_forest, tree_family, worked_example
from treetrain.tree.build import build_prefix_tree
from treetrain.tree.prefix_tree import PrefixTree
from treetrain.tree.runs import Slices, find_runs, find_slices


def visibility_of_paths(tree: PrefixTree) -> np.ndarray:
    """Which packed token reads which: those before it on some sequence."""
    visible = np.zeros((tree.num_tokens, tree.num_tokens), bool)
    for sequence in range(tree.num_sequences):
        path = tree.positions(sequence)
        for place, query in enumerate(path):
            visible[query, path[: place + 1]] = True
    return visible


def count_pairs(slices: Slices, tokens: int) -> np.ndarray:
    """How many slices hold each pair."""
    counts = np.zeros((tokens, tokens), int)
    for q_start, q_end, k_start, k_end, causal in zip(
        slices.q_starts, slices.q_ends, slices.k_starts, slices.k_ends, slices.causal, strict=True
    ):
        block = np.ones((q_end - q_start, k_end - k_start), int)
        counts[q_start:q_end, k_start:k_end] += np.tril(block) if causal else block
    return counts


def test_worked_example_has_two_runs_and_three_slices() -> None:
    tree = build_prefix_tree(worked_example())
    slices = find_slices(tree)
    assert len(find_runs(tree)) == 2
    rows = zip(slices.q_starts, slices.q_ends, slices.k_starts, slices.k_ends, strict=True)
    assert [tuple(map(int, row)) for row in rows] == [(0, 7, 0, 7), (7, 9, 7, 9), (7, 9, 0, 3)]
    assert slices.causal.tolist() == [True, True, False]
    assert slices.pairs == 28 + 3 + 6


@pytest.mark.parametrize("name", tree_family())
def test_family_slices_are_the_visibility_and_hold_no_pair_twice(name: str) -> None:
    tree = build_prefix_tree(tree_family()[name])
    counts = count_pairs(find_slices(tree), tree.num_tokens)
    assert np.array_equal(counts, visibility_of_paths(tree).astype(int))


def test_slices_of_1000_random_forests_are_the_visibility_and_hold_no_pair_twice() -> None:
    rng = np.random.default_rng(0)
    for _ in range(1000):
        sequences = [
            rng.integers(0, 3, rng.integers(0, 12)).tolist() for _ in range(rng.integers(1, 9))
        ]
        tree = build_prefix_tree(sequences)
        slices = find_slices(tree)
        counts = count_pairs(slices, tree.num_tokens)
        assert np.array_equal(counts, visibility_of_paths(tree).astype(int)), sequences
        assert slices.pairs == int((tree.depth_positions + 1).sum())


def test_number_of_slices_is_twice_the_leaves_less_the_roots() -> None:
    rng = np.random.default_rng(1)
    for _ in range(50):
        tree = build_prefix_tree(random_forest(rng))
        leaves = tree.num_nodes - len(set(tree.parents[tree.parents >= 0].tolist()))
        roots = int((tree.parents < 0).sum())
        assert len(find_runs(tree)) == leaves
        assert len(find_slices(tree)) == 2 * leaves - roots


def test_a_path_changes_runs_at_most_log2_times() -> None:
    rng = np.random.default_rng(2)
    for _ in range(50):
        tree = build_prefix_tree(random_forest(rng))
        runs = find_runs(tree)
        for sequence in range(tree.num_sequences):
            path = tree.positions(sequence)
            changes = len(set(np.searchsorted(runs.starts, path, side="right").tolist())) - 1
            assert changes <= np.log2(tree.num_tokens)


def test_runs_tile_packed_order() -> None:
    tree = build_prefix_tree(random_forest(np.random.default_rng(3)))
    runs = find_runs(tree)
    assert runs.starts[0] == 0
    assert runs.ends[-1] == tree.num_tokens
    assert np.array_equal(runs.starts[1:], runs.ends[:-1])


def test_a_tree_without_tokens_has_no_runs() -> None:
    tree = build_prefix_tree([[], []])
    assert len(find_runs(tree)) == 0
    assert len(find_slices(tree)) == 0
