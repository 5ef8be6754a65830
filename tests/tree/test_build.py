"""Building against the definition of the tree, rebuilt here from the set of distinct prefixes."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treetrain.testing.trees import random_forest, tree_family, worked_example
from treetrain.tree.build import build_prefix_tree, concatenate_trees
from treetrain.tree.prefix_tree import PrefixTree

FIELDS = (
    "tokens",
    "node_starts",
    "parents",
    "path_counts",
    "depth_starts",
    "subtree_ends",
    "sequence_nodes",
)
colliding = st.lists(st.lists(st.integers(0, 2), max_size=8), min_size=1, max_size=8)
nonempty = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=6), min_size=1, max_size=8)


def tree_by_definition(sequences: list[list[int]]) -> tuple[dict[str, list[int]], list[list[int]]]:
    """The tree's arrays and each sequence's positions, one entry per distinct prefix."""
    through: dict[tuple[int, ...], list[int]] = {}
    for index, sequence in enumerate(sequences):
        for length in range(1, len(sequence) + 1):
            through.setdefault(tuple(sequence[:length]), []).append(index)
    children: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for prefix in through:
        children.setdefault(prefix[:-1], []).append(prefix)
    sizes = {p: sum(q[: len(p)] == p for q in through) for p in through}

    def ordered(parent: tuple[int, ...]) -> list[tuple[int, ...]]:
        rest = sorted(children.get(parent, []), key=lambda p: through[p][0])
        first = max(rest, key=lambda p: (sizes[p], -through[p][0]), default=None)
        return [] if first is None else [first, *(p for p in rest if p != first)]

    packed: list[tuple[int, ...]] = []
    waiting = ordered(())[::-1]
    while waiting:
        packed.append(waiting.pop())
        waiting.extend(ordered(packed[-1])[::-1])
    place = {prefix: index for index, prefix in enumerate(packed)}
    sequence_ends = {tuple(sequence) for sequence in sequences}
    starts = [
        index
        for index, prefix in enumerate(packed)
        if len(prefix) == 1 or len(children[prefix[:-1]]) > 1 or prefix[:-1] in sequence_ends
    ]
    node = {p: sum(start <= place[p] for start in starts) - 1 for p in packed}
    node[()] = -1
    heads = [packed[start] for start in starts]
    arrays = {
        "tokens": [prefix[-1] for prefix in packed],
        "node_starts": [*starts, len(packed)],
        "parents": [node[head[:-1]] for head in heads],
        "path_counts": [len(through[head]) for head in heads],
        "depth_starts": [len(head) - 1 for head in heads],
        "subtree_ends": [place[head] + sizes[head] for head in heads],
        "sequence_nodes": [node[tuple(sequence)] for sequence in sequences],
    }
    positions = [[place[tuple(s[:length])] for length in range(1, len(s) + 1)] for s in sequences]
    return arrays, positions


def arrays_of(tree: PrefixTree) -> dict[str, list[int]]:
    return {name: getattr(tree, name).tolist() for name in FIELDS}


def flatten(rows: list[list[Any]]) -> list[Any]:
    return [entry for row in rows for entry in row]


def interleave(sequences: list[list[int]], keys: list[list[int]]) -> list[list[int]]:
    """One token for each distinct (token, key), which merges exactly where both are equal."""
    pairs = zip(sequences, keys, strict=True)
    return [[t * 4 + k for t, k in zip(s, row, strict=True)] for s, row in pairs]


def test_worked_example_has_the_documented_arrays() -> None:
    tree = build_prefix_tree(worked_example())
    assert arrays_of(tree) == {
        "tokens": [1, 2, 3, 6, 7, 8, 9, 4, 5],
        "node_starts": [0, 3, 5, 7, 9],
        "parents": [-1, 0, 1, 0],
        "path_counts": [3, 2, 1, 1],
        "depth_starts": [0, 3, 5, 3],
        "subtree_ends": [9, 7, 7, 9],
        "sequence_nodes": [3, 1, 2],
    }
    assert tree.depth_positions.tolist() == [0, 1, 2, 3, 4, 5, 6, 3, 4]
    assert tree.token_subtree_ends.tolist() == [9, 9, 9, 7, 7, 7, 7, 9, 9]
    assert tree.keys is None


@pytest.mark.parametrize("name", tree_family())
def test_family_is_built_as_defined(name: str) -> None:
    sequences = tree_family()[name]
    assert arrays_of(build_prefix_tree(sequences)) == tree_by_definition(sequences)[0]


@given(colliding)
def test_arrays_and_positions_are_those_of_the_definition(sequences: list[list[int]]) -> None:
    tree = build_prefix_tree(sequences)
    arrays, positions = tree_by_definition(sequences)
    assert arrays_of(tree) == arrays
    assert [tree.positions(s).tolist() for s in range(len(sequences))] == positions


def test_random_forests_are_built_as_defined() -> None:
    for seed in range(20):
        sequences = random_forest(np.random.default_rng(seed), vocabulary=6)
        assert arrays_of(build_prefix_tree(sequences)) == tree_by_definition(sequences)[0]


@given(colliding, st.randoms(use_true_random=False))
def test_order_of_input_changes_only_indices(
    sequences: list[list[int]], shuffler: random.Random
) -> None:
    order = list(range(len(sequences)))
    shuffler.shuffle(order)
    shuffled = [sequences[index] for index in order]
    one, other = build_prefix_tree(sequences), build_prefix_tree(shuffled)
    assert sorted(prefixes_of(one)) == sorted(prefixes_of(other))
    assert one.sequence_lengths[order].tolist() == other.sequence_lengths.tolist()
    for new, old in enumerate(order):
        assert one.path_counts[nodes_of(one, old)].tolist() == (
            other.path_counts[nodes_of(other, new)].tolist()
        )


def nodes_of(tree: PrefixTree, sequence: int) -> np.ndarray:
    return tree.token_nodes[tree.positions(sequence)]


def prefixes_of(tree: PrefixTree) -> list[tuple[int, ...]]:
    """The path to the end of every node."""
    found: list[tuple[int, ...]] = []
    for node, parent in enumerate(tree.parents):
        own = tree.tokens[tree.node_starts[node] : tree.node_starts[node + 1]].tolist()
        found.append((*(found[parent] if parent >= 0 else ()), *own))
    return found


@given(colliding)
def test_tree_tokens_are_the_distinct_prefixes_and_path_counts_add_up(
    sequences: list[list[int]],
) -> None:
    tree = build_prefix_tree(sequences)
    distinct = {tuple(s[: n + 1]) for s in sequences for n in range(len(s))}
    assert tree.num_tokens == len(distinct)
    assert (tree.path_counts * tree.node_lengths).sum() == sum(map(len, sequences))


def test_first_child_is_the_largest_and_the_others_keep_their_order() -> None:
    tree = build_prefix_tree([[1, 9], [1, 8, 8], [1, 7], [1, 6, 6], [1, 5]])
    assert tree.tokens.tolist() == [1, 8, 8, 9, 7, 6, 6, 5]


def test_roots_are_ordered_like_children() -> None:
    tree = build_prefix_tree([[3], [2, 2], [1], [2, 2]])
    assert tree.tokens.tolist() == [2, 2, 3, 1]
    assert tree.parents.tolist() == [-1, -1, -1]


def test_large_ids_keep_the_order_of_first_appearance() -> None:
    tree = build_prefix_tree([[2**31 - 1], [256], [1], [0]])
    assert tree.tokens.tolist() == [2**31 - 1, 256, 1, 0]


@pytest.mark.parametrize("length", [15, 16, 17, 79, 80, 81, 335, 336, 337, 600])
def test_branch_is_found_at_any_length(length: int) -> None:
    prefix = list(range(length))
    tree = build_prefix_tree([[*prefix, 7, 1], [*prefix, 8], prefix, [*prefix, 8, 9]])
    assert tree.num_tokens == length + 4
    assert tree.path_counts.tolist() == [4, 1, 2, 1]
    assert tree.node_starts.tolist() == [0, length, length + 2, length + 3, length + 4]


def test_many_sequences_are_compared_in_several_rounds() -> None:
    sequences = [[index // 100, 5, index % 100] for index in range(20_000)]
    tree = build_prefix_tree(sequences)
    assert tree.num_tokens == 200 * 2 + 20_000
    indices, offsets = tree.all_positions()
    assert tree.tokens[indices].tolist() == flatten(sequences)
    assert offsets.tolist() == list(range(0, 60_001, 3))


def test_deep_chain_of_branches_needs_no_recursion() -> None:
    history = list(range(3_000))
    tree = build_prefix_tree([[*history[: turn + 1], 5_000] for turn in range(3_000)])
    assert tree.num_tokens == 6_000
    assert tree.positions(2_999).tolist()[:3] == [0, 1, 2]


@given(nonempty, st.data())
def test_keys_merge_exactly_where_token_and_key_are_equal(
    sequences: list[list[int]], data: st.DataObject
) -> None:
    keys = [[data.draw(st.integers(0, 3)) for _ in sequence] for sequence in sequences]
    tree = build_prefix_tree(sequences, keys)
    expected = arrays_of(build_prefix_tree(interleave(sequences, keys)))
    merged = expected.pop("tokens")
    actual = arrays_of(tree)
    assert tree.keys is not None
    assert [
        t * 4 + k for t, k in zip(actual.pop("tokens"), tree.keys.tolist(), strict=True)
    ] == merged
    assert actual == expected


def test_keys_may_be_any_int64() -> None:
    keys = [[-(2**63), 2**63 - 1], [-(2**63), 2**63 - 1], [-(2**63), 2**31]]
    tree = build_prefix_tree([[4, 5], [4, 5], [4, 5]], keys)
    assert tree.tokens.tolist() == [4, 5, 5]
    assert tree.keys is not None
    assert tree.keys.tolist() == [-(2**63), 2**63 - 1, 2**31]


def test_same_token_id_with_different_pictures_is_not_merged() -> None:
    picture = 7
    one, other = [[picture, picture, 1]] * 2, [[0, 1, -1], [2, 3, -1]]
    assert build_prefix_tree(one, other).num_tokens == 6
    assert build_prefix_tree(one, [other[0]] * 2).num_tokens == 3


def test_empty_sequences_keep_their_place() -> None:
    tree = build_prefix_tree([[], [1, 2], []])
    assert tree.sequence_nodes.tolist() == [-1, 0, -1]
    assert tree.sequence_lengths.tolist() == [0, 2, 0]
    assert tree.path_counts.tolist() == [1]


def test_a_tree_of_empty_sequences_alone_has_no_tokens() -> None:
    tree = build_prefix_tree([[], []])
    assert (tree.num_sequences, tree.num_nodes, tree.num_tokens) == (2, 0, 0)
    assert tree.node_starts.tolist() == [0]
    assert tree.predecessors.tolist() == []


def test_no_sequences_are_refused() -> None:
    with pytest.raises(ValueError, match="sequences must hold at least one sequence, got none"):
        build_prefix_tree([])


def test_keys_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match="one row for each of the 2 rows of sequences, got 1"):
        build_prefix_tree([[1], [2]], [[1]])
    with pytest.raises(ValueError, match=r"keys\[1\] must have one key for each of the 2 tokens"):
        build_prefix_tree([[1], [2, 3]], [[1], [2]])


@given(st.lists(colliding, min_size=1, max_size=4))
def test_concatenated_trees_keep_everything_in_order(groups: list[list[list[int]]]) -> None:
    trees = [build_prefix_tree(group) for group in groups]
    forest = concatenate_trees(trees)
    sequences = flatten(groups)
    assert forest.tokens.tolist() == [t for tree in trees for t in tree.tokens.tolist()]
    assert forest.num_sequences == len(sequences)
    for index, sequence in enumerate(sequences):
        assert forest.tokens[forest.positions(index)].tolist() == sequence
    indices, offsets = forest.all_positions()
    assert forest.tokens[indices].tolist() == flatten(sequences)
    assert np.diff(offsets).tolist() == list(map(len, sequences))
    expected = [
        e + s
        for tree, s in zip(trees, starts_of(trees), strict=True)
        for e in tree.token_subtree_ends
    ]
    assert forest.token_subtree_ends.tolist() == expected
    assert forest.depth_positions.tolist() == [d for tree in trees for d in tree.depth_positions]


def starts_of(trees: list[PrefixTree]) -> list[int]:
    return [sum(tree.num_tokens for tree in trees[:index]) for index in range(len(trees))]


def test_equal_trees_are_not_merged_across_a_forest() -> None:
    tree = build_prefix_tree([[1, 2]])
    forest = concatenate_trees([tree, tree])
    assert forest.tokens.tolist() == [1, 2, 1, 2]
    assert forest.parents.tolist() == [-1, -1]
    assert forest.predecessors.tolist() == [-1, 0, -1, 2]
    assert tree.tokens.tolist() == [1, 2]


def test_forest_of_trees_with_and_without_keys_is_refused() -> None:
    plain, keyed = build_prefix_tree([[1]]), build_prefix_tree([[1]], [[0]])
    with pytest.raises(ValueError, match=r"got none for trees\[1\]"):
        concatenate_trees([keyed, plain])
    keys = concatenate_trees([keyed, keyed]).keys
    assert keys is not None
    assert keys.tolist() == [0, 0]


def test_forest_of_no_trees_is_refused() -> None:
    with pytest.raises(ValueError, match="trees must hold at least one tree, got none"):
        concatenate_trees([])
