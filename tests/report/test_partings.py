from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treetrain.report.partings import REPEAT_WINDOW, find_partings, merge_partings
from treetrain.tree.build import build_prefix_tree

PREFIX = [1, 2, 3]
LONG = list(range(100, 130))


def test_the_smaller_branch_is_what_is_computed_apart():
    [parting] = find_partings(build_prefix_tree([[*PREFIX, *LONG], [*PREFIX, 7, 8]]))
    assert (parting.token, parting.places, parting.tokens, parting.depth) == (7, 1, 2, 3)
    assert parting.before.tolist() == PREFIX
    assert parting.branch.tolist() == [7, 8]
    assert parting.sibling.tolist() == LONG[:12]


def test_text_that_goes_on_equal_after_a_difference_is_counted_as_repeated():
    thought = [50, 51]
    [parting] = find_partings(
        build_prefix_tree([[*PREFIX, *LONG, 9, 9], [*PREFIX, *thought, *LONG]])
    )
    # The two of equal length stand in order of first appearance.
    assert {parting.token} <= {50, 100}
    assert parting.repeated == len(LONG)


def test_a_stretch_shorter_than_the_window_is_no_repetition():
    short = LONG[: REPEAT_WINDOW - 1]
    [parting] = find_partings(build_prefix_tree([[*PREFIX, *LONG], [*PREFIX, 50, *short, 51]]))
    assert parting.repeated == 0


def test_two_repeated_stretches_count_each_token_once():
    cut = [*LONG[:10], 60, *LONG[8:20]]
    [parting] = find_partings(build_prefix_tree([[*PREFIX, *LONG], [*PREFIX, 50, *cut]]))
    assert parting.repeated == 10 + 12


def test_branches_that_begin_alike_are_one_parting():
    chain = [[n, n] for n in range(20, 26)]
    path = [token for pair in chain for token in pair]
    sequences = [[*path[: 2 * n], 9, n] for n in range(1, 5)] + [path]
    partings = find_partings(build_prefix_tree(sequences))
    assert [(parting.token, parting.places, parting.tokens) for parting in partings] == [(9, 4, 8)]


def test_roots_are_siblings():
    [parting] = find_partings(build_prefix_tree([[1, 2, 3], [4, 5]]))
    assert (parting.token, parting.depth, parting.tokens) == (4, 0, 2)
    assert parting.before.tolist() == []


@pytest.mark.parametrize("sequences", [[[1, 2], [1, 2]], [[]], [[1], [1, 2], [1, 2, 3]]])
def test_paths_that_do_not_part_give_nothing(sequences):
    assert find_partings(build_prefix_tree(sequences)) == []


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(0, 2), max_size=24), min_size=1, max_size=8))
def test_partings_agree_with_a_count_by_hand(sequences):
    tree = build_prefix_tree(sequences)
    tokens, repeated, places = Counter[int](), Counter[int](), Counter[int]()
    for parent in range(-1, tree.num_nodes):
        children = np.flatnonzero(tree.parents == parent)
        for child in children[1:]:
            own = tree.tokens[tree.node_starts[child] : tree.subtree_ends[child]].tolist()
            largest = tree.tokens[
                tree.node_starts[children[0]] : tree.subtree_ends[children[0]]
            ].tolist()
            windows = {
                tuple(largest[i : i + REPEAT_WINDOW])
                for i in range(len(largest) - REPEAT_WINDOW + 1)
            }
            covered = {
                i + step
                for i in range(len(own) - REPEAT_WINDOW + 1)
                if tuple(own[i : i + REPEAT_WINDOW]) in windows
                for step in range(REPEAT_WINDOW)
            }
            tokens[own[0]] += len(own)
            repeated[own[0]] += len(covered)
            places[own[0]] += 1
    found = find_partings(tree)
    assert {p.token: (p.tokens, p.repeated, p.places) for p in found} == {
        token: (tokens[token], repeated[token], places[token]) for token in tokens
    }
    assert [(-p.repeated, -p.tokens) for p in found] == sorted(
        (-p.repeated, -p.tokens) for p in found
    )


def test_the_first_sequence_through_a_branch_says_where_it_was_read():
    tree = build_prefix_tree([[*PREFIX, *LONG], [], [*PREFIX, 7, 8, 9], [*PREFIX, 7, 8]])
    assert [p.source for p in find_partings(tree, ["a:1", "a:2", "a:3", "a:4"])] == ["a:3"]
    assert [p.source for p in find_partings(tree)] == [None]


def test_partings_of_several_trees_are_summed():
    trees = [
        build_prefix_tree([[1, *LONG], [1, 9, 8]]),
        build_prefix_tree([[2, *LONG], [2, 9, 8, 7], [2, 5]]),
    ]
    merged = merge_partings(map(find_partings, trees))
    assert [(p.token, p.places, p.tokens) for p in merged] == [(9, 2, 5), (5, 1, 1)]
    assert merged[0].before.tolist() == [2]
