from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from treetrain.testing.trees import VOCABULARY, random_forest, tree_family
from treetrain.tree.build import build_prefix_tree
from treetrain.tree.metrics import TreeMetrics, measure_tree


def metrics_of(name: str) -> TreeMetrics:
    return measure_tree(build_prefix_tree(tree_family()[name]))


def test_family_has_the_shapes_it_names() -> None:
    assert metrics_of("one_sequence").nodes == 1
    assert metrics_of("one_token").flat_tokens == 1
    assert metrics_of("equal_sequences").sequences > metrics_of("equal_sequences").nodes
    assert metrics_of("strict_prefix").leaves == 1
    assert metrics_of("several_roots").roots == 3
    assert metrics_of("star").branching_max == 16
    assert metrics_of("chain").branch_points == 0
    assert metrics_of("chain").depth_nodes_max == 11
    assert metrics_of("comb").depth_nodes_max >= 3
    assert metrics_of("uneven").depth_nodes_max >= 3
    assert metrics_of("one_token_nodes").nodes == metrics_of("one_token_nodes").tree_tokens
    for place in (127, 128, 129):
        tree = build_prefix_tree(tree_family()[f"branch_at_{place}"])
        assert tree.node_starts[1] == place
    assert [] in tree_family()["empty_sequence"]


def test_family_ids_fit_a_tiny_vocabulary() -> None:
    for sequences in tree_family().values():
        assert all(0 < token < VOCABULARY for sequence in sequences for token in sequence)


def test_family_is_made_anew_each_time() -> None:
    tree_family()["star"][0].append(1)
    assert tree_family()["star"] == tree_family()["star"]
    assert len(tree_family()["star"][0]) == 14


@pytest.mark.parametrize("seed", range(20))
def test_random_forests_have_three_levels_and_as_many_roots_as_asked(seed: int) -> None:
    sequences = random_forest(np.random.default_rng(seed), roots=3, depth=4)
    metrics = measure_tree(build_prefix_tree(sequences))
    assert metrics.roots == 3
    assert 3 <= metrics.depth_nodes_max <= 4
    assert sequences == random_forest(np.random.default_rng(seed), roots=3, depth=4)
    assert all(0 < token < VOCABULARY for sequence in sequences for token in sequence)


def test_random_forests_have_duplicates_and_strict_prefixes() -> None:
    forests = [random_forest(np.random.default_rng(seed)) for seed in range(20)]
    trees = [build_prefix_tree(forest) for forest in forests]
    assert any(len(set(map(tuple, f))) < len(f) for f in forests)
    assert any(set(tree.parents) & set(tree.sequence_nodes) - {-1} for tree in trees)


@pytest.mark.parametrize(
    "limits", [{"depth": 2}, {"roots": 0}, {"children": 1}, {"node_tokens": 0}, {"vocabulary": 3}]
)
def test_forests_that_cannot_be_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be"):
        random_forest(np.random.default_rng(0), **limits)


def test_trees_need_no_torch() -> None:
    code = "import sys, treetrain.testing; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
