from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treetrain.packing.targets import find_targets
from treetrain.tree.build import build_prefix_tree

WEIGHTS = st.sampled_from([-1.0, 0.0, 0.5, 1.0])
ROWS = st.lists(st.lists(st.tuples(st.integers(0, 2), WEIGHTS), max_size=7), min_size=1, max_size=8)


def split(rows):
    tokens = [[token for token, _ in row] for row in rows]
    weights = np.array([weight for row in rows for _, weight in row], np.float64)
    return tokens, weights


def expected_weights(rows):
    """Weight of each (prefix, token) that some sequence trains, from the sequences alone."""
    weights = defaultdict(float)
    for row in rows:
        tokens = tuple(token for token, _ in row)
        for place in range(1, len(row)):
            if row[place][1] != 0:
                weights[tokens[: place + 1]] += row[place][1]
    return weights


def paths(tree, sequences):
    """Prefix that ends at each packed index."""
    found = {}
    for index, tokens in enumerate(sequences):
        for place, packed in enumerate(tree.positions(index)):
            found[int(packed)] = tuple(tokens[: place + 1])
    return found


@given(ROWS)
def test_targets_are_the_trained_prefixes_with_summed_weights(rows):
    sequences, weights = split(rows)
    tree = build_prefix_tree(sequences)
    targets = find_targets(tree, weights)
    prefix_of = paths(tree, sequences)
    found = {
        prefix_of[int(t)]: w for t, w in zip(targets.packed_indices, targets.weights, strict=True)
    }
    assert found == pytest.approx(expected_weights(rows), abs=1e-12)
    assert len(targets) == len(found)
    for predictor, packed, token in zip(
        targets.predictors, targets.packed_indices, targets.tokens, strict=True
    ):
        assert prefix_of[int(packed)] == (*prefix_of[int(predictor)], token)


@given(ROWS)
def test_every_edge_points_at_its_own_token(rows):
    sequences, weights = split(rows)
    tree = build_prefix_tree(sequences)
    targets = find_targets(tree, weights)
    trained = set(expected_weights(rows))
    for index, row in enumerate(rows):
        edges = slice(targets.sequence_offsets[index], targets.sequence_offsets[index + 1])
        assert targets.edge_weights[edges].tolist() == [weight for _, weight in row[1:]]
        for place, target in enumerate(targets.edge_targets[edges], start=1):
            if tuple(sequences[index][: place + 1]) in trained:
                assert targets.packed_indices[target] == tree.positions(index)[place]
            else:
                assert target == -1


@given(ROWS)
def test_targets_of_a_distinct_predictor_are_one_stretch(rows):
    sequences, weights = split(rows)
    targets = find_targets(build_prefix_tree(sequences), weights, untrained=True)
    assert (np.diff(targets.distinct_predictors) > 0).all()
    for index, predictor in enumerate(targets.distinct_predictors):
        stretch = slice(targets.target_offsets[index], targets.target_offsets[index + 1])
        assert set(targets.predictors[stretch].tolist()) == {int(predictor)}
        assert set(targets.predictor_of_target[stretch].tolist()) == {index}
    assert targets.target_offsets[-1] == len(targets)


@given(ROWS)
def test_untrained_targets_carry_the_same_weights(rows):
    sequences, weights = split(rows)
    tree = build_prefix_tree(sequences)
    some = find_targets(tree, weights)
    every = find_targets(tree, weights, untrained=True)
    assert len(every) == tree.num_tokens - (tree.predecessors < 0).sum()
    assert every.weights.sum() == pytest.approx(some.weights.sum(), abs=1e-12)
    assert (every.edge_targets >= 0).all()


def test_edges_sum_onto_targets():
    targets = find_targets(build_prefix_tree([[1, 2, 3], [1, 2, 4], [1, 2, 3]]), np.ones(9))
    # Edges 1>2, 2>3, 1>2, 2>4, 1>2, 2>3.
    sums = targets.sum_edges(np.array([1.0, 10.0, 2.0, 20.0, 4.0, 40.0]))
    by_token = dict(zip(targets.tokens.tolist(), sums.tolist(), strict=True))
    assert by_token == {2: 7.0, 3: 50.0, 4: 20.0}


def test_second_of_two_roots_is_no_target():
    targets = find_targets(build_prefix_tree([[1, 2], [7, 8]]), np.ones(4))
    assert sorted(zip(targets.tokens.tolist(), targets.predictors.tolist(), strict=True)) == [
        (2, 0),
        (8, 2),
    ]


def test_strict_prefix_trains_its_own_edges_only():
    tree = build_prefix_tree([[1, 2, 3, 4], [1, 2, 3, 4, 5, 6]])
    targets = find_targets(tree, np.array([0, 1, 1, 1, 0, 0, 0, 0, 1, 1.0]))
    assert targets.weights.tolist() == [1.0, 1.0, 1.0, 1.0, 1.0]
    assert targets.predictors.tolist() == [0, 1, 2, 3, 4]
    assert targets.edge_targets.tolist() == [0, 1, 2, 0, 1, 2, 3, 4]


def test_weights_of_another_length_are_refused():
    with pytest.raises(ValueError, match=r"one entry per flat token, \[3\], got shape \(2,\)"):
        find_targets(build_prefix_tree([[1, 2, 3]]), np.ones(2))
    targets = find_targets(build_prefix_tree([[1, 2, 3]]), np.ones(3))
    with pytest.raises(ValueError, match="one entry per flat edge"):
        targets.sum_edges(np.ones(3))
