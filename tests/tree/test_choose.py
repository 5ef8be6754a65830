"""The choice of sequences against a look at every pair of them."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treetrain.testing.trees import tree_family
from treetrain.tree.build import build_prefix_tree
from treetrain.tree.choose import choose_shared, shortest_branching_pair

colliding = st.lists(st.lists(st.integers(0, 2), max_size=6), min_size=1, max_size=7)
forests = st.lists(colliding, min_size=1, max_size=3)


def branch(left: list[int], right: list[int]) -> bool:
    """Whether two sequences share their beginning and both go on, differently."""
    common = 0
    while common < min(len(left), len(right)) and left[common] == right[common]:
        common += 1
    return 0 < common < min(len(left), len(right))


def choose(groups: list[list[list[int]]], limit: int) -> list[list[list[int]]]:
    trees = [build_prefix_tree(group) for group in groups]
    found = choose_shared(trees, limit)
    return [
        [group[place] for place in own.tolist()] for group, own in zip(groups, found, strict=True)
    ]


def branching_sums(groups: list[list[list[int]]]) -> list[int]:
    return [
        len(left) + len(right)
        for group in groups
        for left, right in combinations(group, 2)
        if branch(left, right)
    ]


@given(forests, st.integers(0, 40))
def test_two_that_branch_are_chosen_if_any_two_fit(
    groups: list[list[list[int]]], limit: int
) -> None:
    chosen = choose(groups, limit)
    assert sum(len(sequence) for own in chosen for sequence in own) <= limit
    fits = any(total <= limit for total in branching_sums(groups))
    assert bool(branching_sums(chosen)) == fits


@given(forests, st.integers(0, 40))
def test_two_that_share_are_chosen_if_any_two_fit(
    groups: list[list[list[int]]], limit: int
) -> None:
    def sharing(several: list[list[list[int]]]) -> list[int]:
        return [
            len(left) + len(right)
            for group in several
            for left, right in combinations(group, 2)
            if left[:1] == right[:1] != []
        ]

    fits = any(total <= limit for total in sharing(groups))
    assert bool(sharing(choose(groups, limit))) == fits


@given(forests)
def test_the_shortest_branching_pair_is_that_of_all_pairs(groups: list[list[list[int]]]) -> None:
    trees = [build_prefix_tree(group) for group in groups]
    assert shortest_branching_pair(trees) == min(branching_sums(groups), default=None)


@given(colliding, st.integers(0, 40))
def test_the_choice_is_the_same_each_time_and_takes_each_sequence_once(
    sequences: list[list[int]], limit: int
) -> None:
    tree = build_prefix_tree(sequences)
    [first], [second] = choose_shared([tree], limit), choose_shared([tree], limit)
    assert first.tolist() == second.tolist() == sorted(set(first.tolist()))


@pytest.mark.parametrize("sequences", tree_family().values(), ids=tree_family())
def test_everything_that_shares_is_chosen_where_there_is_room(sequences: list[list[int]]) -> None:
    [chosen] = choose_shared([build_prefix_tree(sequences)], 10**6)
    shares = [
        index
        for index, one in enumerate(sequences)
        if any(one[:1] == other[:1] != [] for n, other in enumerate(sequences) if n != index)
    ]
    assert chosen.tolist() == shares


def test_the_tree_that_shares_most_is_chosen_first() -> None:
    little = [[1, 2, 3], [1, 4, 5], [1, 6, 7]]
    much = [[*range(10), 20], [*range(10), 21], [*range(10), 22]]
    assert choose([little, much], 22) == [[], much[:2]]
    assert choose([little, much], 28) == [little[:2], much[:2]]
    assert choose([little, much], 21) == [little, []]
