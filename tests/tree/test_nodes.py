"""A tree handed over as nodes equals the tree of its sequences written out."""

from __future__ import annotations

import random
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treetrain.testing.trees import tree_family
from treetrain.tree.build import build_prefix_tree
from treetrain.tree.nodes import build_from_nodes
from treetrain.tree.prefix_tree import PrefixTree

Nodes = tuple[list[list[int]], list[int]]


def assert_equal_trees(one: PrefixTree, other: PrefixTree) -> None:
    for field in fields(PrefixTree):
        left, right = getattr(one, field.name), getattr(other, field.name)
        assert (left is None) == (right is None), field.name
        if left is not None:
            assert left.dtype == right.dtype == np.int64
            assert left.tolist() == right.tolist(), field.name


def write_out(rows: list[list[int]], parents: list[int], ends: list[int]) -> list[list[int]]:
    """The path to each end."""
    paths: list[list[int]] = []
    for node in ends:
        path: list[int] = []
        while node >= 0:
            path, node = rows[node] + path, parents[node]
        paths.append(path)
    return paths


def leaves_of(parents: list[int]) -> list[int]:
    return [node for node in range(len(parents)) if node not in parents]


@st.composite
def shuffled_nodes(draw: st.DrawFn) -> Nodes:
    """Nodes of up to three tokens from an alphabet of two, parents anywhere in the list."""
    count = draw(st.integers(1, 10))
    rows = draw(st.lists(st.lists(st.integers(0, 1), max_size=3), min_size=count, max_size=count))
    above = [draw(st.integers(-1, node - 1)) for node in range(count)]
    names = draw(st.permutations(range(count)))
    parents = [-1] * count
    for node, parent in enumerate(above):
        parents[names[node]] = names[parent] if parent >= 0 else -1
    return rows, parents


@given(shuffled_nodes())
def test_each_leaf_is_a_sequence_unless_told(nodes: Nodes) -> None:
    rows, parents = nodes
    expected = build_prefix_tree(write_out(rows, parents, leaves_of(parents)))
    assert_equal_trees(build_from_nodes(rows, parents), expected)


@given(shuffled_nodes(), st.data())
def test_sequences_may_end_in_any_node(nodes: Nodes, data: st.DataObject) -> None:
    rows, parents = nodes
    places = st.integers(-1, len(rows) - 1)
    ends = data.draw(st.lists(places, min_size=1, max_size=6))
    expected = build_prefix_tree(write_out(rows, parents, ends))
    assert_equal_trees(build_from_nodes(rows, parents, sequence_nodes=ends), expected)


@given(shuffled_nodes(), st.data())
def test_keys_part_what_tokens_would_merge(nodes: Nodes, data: st.DataObject) -> None:
    rows, parents = nodes
    keys = [[data.draw(st.integers(-1, 0)) for _ in row] for row in rows]
    ends = leaves_of(parents)
    expected = build_prefix_tree(write_out(rows, parents, ends), write_out(keys, parents, ends))
    assert_equal_trees(build_from_nodes(rows, parents, keys=keys), expected)


@pytest.mark.parametrize("name", tree_family())
def test_own_nodes_give_the_tree_back(name: str) -> None:
    tree = build_prefix_tree(tree_family()[name])
    if not tree.num_nodes:
        return
    rows = np.split(tree.tokens, tree.node_starts[1:-1])
    again = build_from_nodes(rows, tree.parents, sequence_nodes=tree.sequence_nodes)
    assert_equal_trees(again, tree)


def test_siblings_that_start_alike_are_merged() -> None:
    tree = build_from_nodes([[1], [2, 3], [2, 4], [2]], [-1, 0, 0, 0])
    assert tree.tokens.tolist() == [1, 2, 3, 4]
    assert tree.path_counts.tolist() == [3, 1, 1]


def test_children_merge_into_what_a_longer_sibling_of_their_parent_goes_on_with() -> None:
    tree = build_from_nodes([[1, 2, 3, 4], [1, 2], [3, 5]], [-1, -1, 1])
    assert tree.tokens.tolist() == [1, 2, 3, 4, 5]
    assert tree.sequence_nodes.tolist() == [1, 2]


def test_only_children_are_joined_where_no_sequence_ends() -> None:
    rows, parents = [[1], [2], [3]], [-1, 0, 1]
    assert build_from_nodes(rows, parents).num_nodes == 1
    assert build_from_nodes(rows, parents, sequence_nodes=[1, 2]).node_starts.tolist() == [0, 2, 3]


def test_nodes_below_which_nothing_ends_are_left_out() -> None:
    tree = build_from_nodes([[1], [2], [3], [4]], [-1, 0, 0, -1], sequence_nodes=[1])
    assert tree.tokens.tolist() == [1, 2]


def test_parents_may_come_after_their_children() -> None:
    tree = build_from_nodes([[3], [2], [1]], [1, 2, -1])
    assert tree.tokens.tolist() == [1, 2, 3]


def test_nodes_without_tokens_stand_for_their_parent() -> None:
    tree = build_from_nodes([[], [1], [], [2], []], [-1, 0, 1, 2, 0])
    assert tree.tokens.tolist() == [1, 2]
    assert tree.sequence_nodes.tolist() == [0, -1]


def test_deep_trees_need_no_recursion() -> None:
    depth = 20_000
    rows = [[node] for node in range(depth)] + [[depth]] * depth
    spine = list(range(-1, depth - 1))
    order = list(range(2 * depth))
    random.Random(0).shuffle(order)
    places = {node: place for place, node in enumerate(order)} | {-1: -1}
    parents = spine + list(range(depth))
    tree = build_from_nodes([rows[n] for n in order], [places[parents[n]] for n in order])
    assert tree.num_tokens == 2 * depth
    assert tree.sequence_lengths.max() == depth + 1
    assert tree.depth_starts.max() == depth - 1


def test_equal_deep_paths_are_merged() -> None:
    depth = 3_000
    rows = [[node % 7] for node in range(depth)] * 2
    chain = list(range(-1, depth - 1))
    parents = chain + [-1 if node < 0 else node + depth for node in chain]
    tree = build_from_nodes(rows, parents)
    assert (tree.num_tokens, tree.path_counts.tolist()) == (depth, [2])


@pytest.mark.parametrize("parents", [[0], [-1, 2, 1], [1, 2, 0], [-1, 0, 3, 2, 3]])
def test_cycles_are_refused(parents: list[int]) -> None:
    with pytest.raises(ValueError, match="from every node to a root, got a cycle above node"):
        build_from_nodes([[1]] * len(parents), parents)


def test_the_first_node_under_a_cycle_is_named() -> None:
    with pytest.raises(ValueError, match="cycle above node 1"):
        build_from_nodes([[1]] * 4, [-1, 2, 2, 0])


@pytest.mark.parametrize("parent", [2, -2, 2**40])
def test_parents_out_of_range_are_named(parent: int) -> None:
    with pytest.raises(ValueError, match=rf"parents\[1\] .* between -1 and 1, got {parent};"):
        build_from_nodes([[1], [2]], [-1, parent])


def test_sequence_nodes_out_of_range_are_named() -> None:
    with pytest.raises(ValueError, match=r"sequence_nodes\[1\] .* between -1 and 0, got 1;"):
        build_from_nodes([[1]], [-1], sequence_nodes=[0, 1])


def test_missing_nodes_sequences_and_parents_are_refused() -> None:
    with pytest.raises(ValueError, match="node_tokens must hold at least one node, got none"):
        build_from_nodes([], [])
    with pytest.raises(ValueError, match="sequence_nodes must hold at least one sequence"):
        build_from_nodes([[1]], [-1], sequence_nodes=[])
    with pytest.raises(ValueError, match="one entry for each of the 2 nodes, got 1"):
        build_from_nodes([[1], [2]], [-1])


def test_tokens_and_keys_are_checked_like_sequences() -> None:
    with pytest.raises(ValueError, match=r"node_tokens\[1\]\[0\] must be a token id between"):
        build_from_nodes([[1], [-1]], [-1, 0])
    with pytest.raises(ValueError, match=r"keys\[1\] must have one key for each of the 2 tokens"):
        build_from_nodes([[1], [2, 3]], [-1, 0], keys=[[0], [0]])
