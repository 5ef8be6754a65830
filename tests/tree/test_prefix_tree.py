from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treetrain.testing.trees import tree_family
from treetrain.tree.build import build_prefix_tree

colliding = st.lists(st.lists(st.integers(0, 1), max_size=10), min_size=1, max_size=10)


@pytest.mark.parametrize("name", tree_family())
def test_every_sequence_is_recovered(name: str) -> None:
    sequences = tree_family()[name]
    tree = build_prefix_tree(sequences)
    for index, sequence in enumerate(sequences):
        assert tree.tokens[tree.positions(index)].tolist() == sequence
        assert tree.depth_positions[tree.positions(index)].tolist() == list(range(len(sequence)))


@given(colliding)
def test_all_positions_joins_the_positions_of_each(sequences: list[list[int]]) -> None:
    tree = build_prefix_tree(sequences)
    indices, offsets = tree.all_positions()
    assert offsets.tolist() == np.cumsum([0, *map(len, sequences)]).tolist()
    for index in range(len(sequences)):
        expected = tree.positions(index)
        assert indices[offsets[index] : offsets[index + 1]].tolist() == expected.tolist()


@given(colliding)
def test_predecessor_is_the_token_before_on_every_path(sequences: list[list[int]]) -> None:
    tree = build_prefix_tree(sequences)
    for index in range(len(sequences)):
        path = tree.positions(index).tolist()
        assert tree.predecessors[path].tolist() == [-1, *path][: len(path)]


@given(colliding)
def test_interval_test_is_visibility(sequences: list[list[int]]) -> None:
    tree = build_prefix_tree(sequences)
    visible = np.zeros((tree.num_tokens, tree.num_tokens), np.bool_)
    for index in range(len(sequences)):
        path = tree.positions(index)
        for place, query in enumerate(path):
            visible[query, path[: place + 1]] = True
    q, k = np.indices(visible.shape)
    assert ((k <= q) & (q < tree.token_subtree_ends[k]) == visible).all()


@given(colliding)
def test_a_path_changes_runs_at_most_log2_times(sequences: list[list[int]]) -> None:
    tree = build_prefix_tree(sequences)
    for index in range(len(sequences)):
        changes = int((np.diff(tree.positions(index)) != 1).sum())
        assert 2**changes <= max(tree.num_tokens, 1)


def test_path_counts_of_tokens_count_duplicates() -> None:
    tree = build_prefix_tree([[1, 2], [1, 2], [1], [1, 3]])
    assert dict(zip(tree.tokens.tolist(), tree.token_path_counts.tolist(), strict=True)) == {
        1: 4,
        2: 2,
        3: 1,
    }


def test_positions_count_from_the_end_like_a_list() -> None:
    tree = build_prefix_tree([[1, 2], [1, 3, 4]])
    assert tree.positions(-1).tolist() == tree.positions(1).tolist()


@pytest.mark.parametrize("sequence", [2, -3])
def test_position_of_no_sequence_is_refused(sequence: int) -> None:
    tree = build_prefix_tree([[1], [2]])
    with pytest.raises(IndexError, match=f"index into 2 sequences, got {sequence}"):
        tree.positions(sequence)


def test_arrays_are_int64_and_cannot_be_written() -> None:
    tree = build_prefix_tree([[1, 2], [1, 3]], [[0, 0], [0, 0]])
    names = [field.name for field in dataclasses.fields(tree)]
    derived = ["sequence_lengths", "depth_positions", "token_subtree_ends", "predecessors"]
    derived += ["token_path_counts", "token_nodes", "node_lengths", "run_heads"]
    for name in names + derived:
        array = getattr(tree, name)
        assert array.dtype == np.int64, name
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 9


def test_fields_cannot_be_replaced() -> None:
    tree = build_prefix_tree([[1, 2]])
    with pytest.raises(dataclasses.FrozenInstanceError):
        tree.tokens = tree.parents  # pyright: ignore[reportAttributeAccessIssue]


def test_input_arrays_stay_writable_and_unchanged() -> None:
    tokens = np.array([1, 2, 3])
    tree = build_prefix_tree([tokens])
    tokens[0] = 9
    assert tree.tokens.tolist() == [1, 2, 3]


def test_repr_says_how_much_is_shared() -> None:
    assert repr(build_prefix_tree([[1, 2], [1, 3]])) == (
        "PrefixTree(2 sequences, 3 nodes, 4 flat tokens, 3 tree tokens)"
    )
