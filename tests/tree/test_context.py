"""Contexts of partitions against ancestors rebuilt from the sequences' paths."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tree.paths import paths_of

from treetrain.testing.trees import random_forest, tree_family
from treetrain.tree.build import build_prefix_tree
from treetrain.tree.context import context_tree
from treetrain.tree.partition import Partitions, partition_tree
from treetrain.tree.prefix_tree import PrefixTree

SEQUENCES = st.lists(st.lists(st.integers(0, 1), max_size=9), min_size=1, max_size=9)


def check_contexts(tree: PrefixTree, partitions: Partitions) -> None:
    ancestors = paths_of(tree)
    owners = partitions.node_partitions[partitions.tree.token_nodes]
    for index in range(partitions.num_partitions):
        context, places = context_tree(partitions, index)
        gateway = int(partitions.gateway_sizes[index])
        own = places[gateway:].tolist()
        assert sorted(own) == np.flatnonzero(owners == index).tolist()
        # The gateway is one path from a root.
        assert places[:gateway].tolist() == (ancestors[places[gateway - 1]] if gateway else [])
        for query in range(gateway, len(places)):
            ends = context.token_subtree_ends
            read = [key for key in range(query + 1) if query < ends[key]]
            assert sorted(places[read].tolist()) == sorted(ancestors[places[query]])
        check_tree(context)
        assert context.tokens.tolist() == tree.tokens[places].tolist()
        assert context.depth_positions.tolist() == tree.depth_positions[places].tolist()
        assert context.token_path_counts.tolist() == tree.token_path_counts[places].tolist()
        before = tree.predecessors[places]
        named = [int(places[k]) if k >= 0 else -1 for k in context.predecessors]
        assert named == before.tolist()


def check_tree(tree: PrefixTree) -> None:
    """Depth-first order: a node's subtree is the interval after it, its children inside it."""
    assert tree.num_sequences == 0
    assert tree.node_starts[-1] == tree.num_tokens
    for node, parent in enumerate(tree.parents.tolist()):
        assert -1 <= parent < node
        below = [n for n in range(tree.num_nodes) if _is_below(tree, n, node)]
        assert below == list(range(node, node + len(below)))
        assert tree.subtree_ends[node] == tree.node_starts[node + len(below)]


def _is_below(tree: PrefixTree, node: int, above: int) -> bool:
    while node > above:
        node = int(tree.parents[node])
    return node == above


@given(SEQUENCES, st.integers(1, 12), st.none() | st.integers(1, 6))
def test_a_context_token_reads_exactly_its_ancestors(
    sequences: list[list[int]], capacity: int, path_capacity: int | None
) -> None:
    tree = build_prefix_tree(sequences)
    check_contexts(tree, partition_tree(tree, capacity, path_capacity=path_capacity))


@pytest.mark.parametrize("name", tree_family())
def test_contexts_of_the_family_read_exactly_their_ancestors(name: str) -> None:
    tree = build_prefix_tree(tree_family()[name])
    for capacity in (2, 7, 20):
        check_contexts(tree, partition_tree(tree, capacity))


def test_contexts_of_random_forests_read_exactly_their_ancestors() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        tree = build_prefix_tree(random_forest(rng, roots=3, depth=4))
        check_contexts(tree, partition_tree(tree, int(rng.integers(1, 40))))


def test_own_nodes_come_with_the_deepest_cut_first_and_roots_last() -> None:
    tree = build_prefix_tree([[1, 2, 3, 4, 5, 6], [1, 2, 3, 7], [1, 8], [9]])
    for capacity in range(1, 12):
        partitions = partition_tree(tree, capacity)
        for index in range(partitions.num_partitions):
            own = partitions.own_nodes(index)
            depths = partitions.tree.depth_starts[partitions.piece_heads[own]]
            assert np.all(np.diff(depths) <= 0)
            assert (partitions.node_partitions[own] == index).all()


def test_keys_are_taken_over() -> None:
    tree = build_prefix_tree([[1, 2, 3], [1, 4]], [[5, 6, 7], [5, 8]])
    partitions = partition_tree(tree, 2)
    for index in range(partitions.num_partitions):
        context, places = context_tree(partitions, index)
        assert tree.keys is not None
        assert context.keys is not None
        assert context.keys.tolist() == tree.keys[places].tolist()
