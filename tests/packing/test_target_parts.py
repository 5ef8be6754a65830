from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treetrain.packing.target_parts import cut_targets
from treetrain.packing.targets import find_targets
from treetrain.tree.build import build_prefix_tree

WEIGHTS = st.sampled_from([-1.0, 0.0, 0.5, 1.0])
ROWS = st.lists(st.lists(st.tuples(st.integers(0, 2), WEIGHTS), max_size=7), min_size=1, max_size=8)
EACH = given(ROWS, st.booleans(), st.integers(1, 5), st.integers(0, 2**32 - 1))


def cut(rows, untrained, num_parts, seed):
    """Targets cut along random rows, each in an order of its own, and what stands where."""
    sequences = [[token for token, _ in row] for row in rows]
    weights = np.array([weight for row in rows for _, weight in row], np.float64)
    tree = build_prefix_tree(sequences)
    targets = find_targets(tree, weights, untrained=untrained)
    rng = np.random.default_rng(seed)
    holders = rng.integers(0, num_parts, tree.num_tokens)
    members = [rng.permutation(np.flatnonzero(holders == part)) for part in range(num_parts)]
    places = np.zeros(tree.num_tokens, np.int64)
    for held in members:
        places[held] = np.arange(len(held))
    parts = cut_targets(targets, holders, places, num_parts=num_parts)
    return targets, members, parts


@EACH
def test_every_target_and_every_edge_that_has_one_is_in_one_part(rows, untrained, parts, seed):
    targets, _, found = cut(rows, untrained, parts, seed)
    assert len(found) == parts
    held = np.concatenate([part.places for part in found])
    assert sorted(held.tolist()) == list(range(len(targets)))
    edges = np.concatenate([part.edges for part in found])
    assert sorted(edges.tolist()) == np.flatnonzero(targets.edge_targets >= 0).tolist()
    assert all((np.diff(part.edges) > 0).all() for part in found)


@EACH
def test_a_target_is_with_its_predictor_and_keeps_token_weight_and_edges(
    rows, untrained, parts, seed
):
    targets, members, found = cut(rows, untrained, parts, seed)
    for held, part in zip(members, found, strict=True):
        own, places = part.targets, part.places
        assert held[own.predictors].tolist() == targets.predictors[places].tolist()
        assert own.tokens.tolist() == targets.tokens[places].tolist()
        assert own.weights.tolist() == targets.weights[places].tolist()
        for packed, original in zip(
            own.packed_indices.tolist(), targets.packed_indices[places].tolist(), strict=True
        ):
            assert held[packed] == original if packed >= 0 else original not in held
        assert places[own.edge_targets].tolist() == targets.edge_targets[part.edges].tolist()
        assert own.edge_weights.tolist() == targets.edge_weights[part.edges].tolist()


@EACH
def test_a_part_keeps_the_order_and_the_offsets_of_targets(rows, untrained, parts, seed):
    targets, _, found = cut(rows, untrained, parts, seed)
    owners = np.repeat(np.arange(len(rows)), targets.edge_lengths)
    for part in found:
        own = part.targets
        order = list(zip(own.predictors.tolist(), part.places.tolist(), strict=True))
        assert order == sorted(order)
        assert own.distinct_predictors.tolist() == sorted(set(own.predictors.tolist()))
        assert (own.distinct_predictors[own.predictor_of_target] == own.predictors).all()
        assert np.repeat(own.distinct_predictors, np.diff(own.target_offsets)).tolist() == (
            own.predictors.tolist()
        )
        stretches = np.split(owners[part.edges], own.sequence_offsets[1:-1])
        assert own.sequence_offsets[[0, -1]].tolist() == [0, len(part.edges)]
        names = [set(stretch.tolist()) for stretch in stretches if len(stretch)]
        assert all(len(name) == 1 for name in names)
        assert len(set.union(set(), *names)) == len(names)
        assert own.edge_lengths.sum() == len(part.edges)


def test_the_first_token_below_a_cut_is_a_target_of_the_row_above():
    """1 2 | 3 4 and 1 2 | 5: three rows, cut at the branch point."""
    tree = build_prefix_tree([[1, 2, 3, 4], [1, 2, 5]])
    targets = find_targets(tree, np.ones(7))
    parts = cut_targets(targets, np.array([0, 0, 1, 1, 2]), np.array([0, 1, 0, 1, 0]), num_parts=3)
    assert [part.targets.tokens.tolist() for part in parts] == [[2, 3, 5], [4], []]
    assert parts[0].targets.packed_indices.tolist() == [1, -1, -1]
    assert parts[1].targets.predictors.tolist() == [0]


def test_rows_that_do_not_fit_are_refused():
    targets = find_targets(build_prefix_tree([[1, 2, 3]]), np.ones(3))
    rows = np.zeros(3, np.int64)
    with pytest.raises(ValueError, match=r"one entry per packed token, \[T\], got shapes \(3,\)"):
        cut_targets(targets, rows, rows[:2], num_parts=1)
    with pytest.raises(ValueError, match="at least 3, got 2"):
        cut_targets(targets, rows[:2], rows[:2], num_parts=1)
    with pytest.raises(ValueError, match="0 to 0 for 1 parts, got 1 at packed index 1"):
        cut_targets(targets, np.array([0, 1, 0]), rows, num_parts=1)
