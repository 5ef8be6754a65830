"""Counts and bounds against sums over every token and every sequence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treetrain.testing.trees import tree_family, worked_example
from treetrain.tree.build import build_prefix_tree, concatenate_trees
from treetrain.tree.metrics import (
    ModelShape,
    flop_bound,
    leafized_flop_bound,
    measure_tree,
)

SHAPE = ModelShape(parameters=1_000, layers=2, heads=3, head_size=5)
colliding = st.lists(st.lists(st.integers(0, 1), max_size=7), min_size=1, max_size=8)


def prefixes_of(sequences: list[list[int]]) -> set[tuple[int, ...]]:
    return {tuple(s[: n + 1]) for s in sequences for n in range(len(s))}


def work(lengths: list[int], *, recompute: bool = False) -> int:
    """Work of tokens that stand `lengths` deep, token by token."""
    dense, attention = (8, 18) if recompute else (6, 14)
    return sum(dense * 1_000 + attention * 2 * 3 * 5 * length for length in lengths)


def depths_of(sequences: list[list[int]]) -> list[int]:
    return [n + 1 for s in sequences for n in range(len(s))]


def test_worked_example_has_the_documented_counts() -> None:
    metrics = measure_tree(build_prefix_tree(worked_example()))
    assert (metrics.flat_tokens, metrics.tree_tokens) == (17, 9)
    assert (metrics.sequences, metrics.roots, metrics.nodes) == (3, 1, 4)
    assert (metrics.leaves, metrics.runs) == (2, 2)
    assert metrics.attention_pairs_tree == 37
    assert metrics.attention_pairs_flat == 15 + 15 + 28
    assert metrics.attention_pair_ratio == 58 / 37
    assert metrics.por == 1 - 9 / 17
    assert metrics.token_reduction == 17 / 9
    assert (metrics.depth_max, metrics.depth_nodes_max) == (7, 3)
    assert (metrics.branch_points, metrics.branching_mean, metrics.branching_max) == (1, 2.0, 2)


@given(colliding)
def test_counts_are_those_of_the_distinct_prefixes(sequences: list[list[int]]) -> None:
    metrics = measure_tree(build_prefix_tree(sequences))
    prefixes = prefixes_of(sequences)
    assert metrics.sequences == len(sequences)
    assert metrics.flat_tokens == sum(map(len, sequences))
    assert metrics.tree_tokens == len(prefixes)
    assert metrics.roots == len({prefix[0] for prefix in prefixes})
    assert metrics.attention_pairs_flat == sum(depths_of(sequences))
    assert metrics.attention_pairs_tree == sum(map(len, prefixes))
    assert metrics.depth_max == max(map(len, sequences))
    fans = [sum(p[:-1] == prefix for p in prefixes) for prefix in prefixes]
    assert metrics.leaves == metrics.runs == fans.count(0)
    forks = [fan for fan in fans if fan > 1]
    assert metrics.branch_points == len(forks)
    assert metrics.branching_max == max(forks, default=0)
    assert metrics.branching_mean == (sum(forks) / len(forks) if forks else 0)


@given(colliding)
def test_node_depth_is_the_longest_way_up(sequences: list[list[int]]) -> None:
    tree = build_prefix_tree(sequences)
    depths: list[int] = []
    for parent in tree.parents:
        depths.append(1 + (depths[parent] if parent >= 0 else 0))
    assert measure_tree(tree).depth_nodes_max == max(depths, default=0)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("name", tree_family())
def test_flop_bound_is_flat_over_tree_work(name: str, recompute: bool) -> None:
    sequences = tree_family()[name]
    bound = flop_bound(build_prefix_tree(sequences), SHAPE, recompute=recompute)
    flat = work(depths_of(sequences), recompute=recompute)
    tree = work([len(prefix) for prefix in prefixes_of(sequences)], recompute=recompute)
    assert bound == pytest.approx(flat / tree, rel=1e-10)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("name", tree_family())
def test_leafized_bound_drops_prefixes_and_duplicates(name: str, recompute: bool) -> None:
    sequences = tree_family()[name]
    distinct = {tuple(s) for s in sequences if s}
    kept = [list(s) for s in distinct if not any(o[: len(s)] == s for o in distinct - {s})]
    bound = leafized_flop_bound(build_prefix_tree(sequences), SHAPE, recompute=recompute)
    flat = work(depths_of(kept), recompute=recompute)
    tree = work([len(prefix) for prefix in prefixes_of(sequences)], recompute=recompute)
    assert bound == pytest.approx(flat / tree, rel=1e-10)


def test_bounds_of_several_trees_are_those_of_their_forest() -> None:
    trees = [build_prefix_tree(sequences) for sequences in tree_family().values()]
    forest = concatenate_trees(trees)
    assert flop_bound(trees, SHAPE) == flop_bound(forest, SHAPE)
    assert leafized_flop_bound(trees, SHAPE) == leafized_flop_bound(forest, SHAPE)
    assert measure_tree(forest).runs == sum(measure_tree(tree).runs for tree in trees)


def test_without_attention_the_bound_is_the_token_reduction() -> None:
    tree = build_prefix_tree(worked_example())
    assert flop_bound(tree, ModelShape(10, 0, 0, 0)) == measure_tree(tree).token_reduction
    assert flop_bound(tree, ModelShape(0, 1, 1, 1)) == measure_tree(tree).attention_pair_ratio


def test_without_tokens_nothing_is_saved() -> None:
    tree = build_prefix_tree([[], []])
    metrics = measure_tree(tree)
    assert (metrics.sequences, metrics.nodes, metrics.depth_max) == (2, 0, 0)
    assert (metrics.por, metrics.token_reduction, metrics.attention_pair_ratio) == (0.0, 1.0, 1.0)
    assert flop_bound(tree, SHAPE) == leafized_flop_bound(tree, SHAPE) == 1.0


def test_large_counts_do_not_overflow() -> None:
    bound = flop_bound(build_prefix_tree([[1] * 1000] * 3), ModelShape(10**14, 10**4, 10**4, 10**4))
    assert bound == pytest.approx(3, rel=1e-10)


@pytest.mark.parametrize("sizes", [(-1, 1, 1, 1), (1, 1, 1, -1), (0, 1, 0, 1)])
def test_impossible_shapes_are_refused(sizes: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="must"):
        ModelShape(*sizes)
