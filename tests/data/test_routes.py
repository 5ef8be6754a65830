from __future__ import annotations

import numpy as np
import pytest
import torch

from treetrain.data.routes import number_routes
from treetrain.data.sample import Sample
from treetrain.packing.batch import pack
from treetrain.tree.build import build_prefix_tree


def test_equal_sets_get_one_number_and_others_another() -> None:
    rng = np.random.default_rng(0)
    routes = [rng.integers(0, 3, (length, 2, 2)) for length in (40, 1, 70)]
    keys = number_routes(routes)
    assert [len(key) for key in keys] == [40, 1, 70]
    flat = [
        tuple(tuple(sorted(layer)) for layer in token) for row in routes for token in row.tolist()
    ]
    numbers = np.concatenate(keys)
    assert numbers.dtype == np.int64
    assert sorted(set(numbers.tolist())) == list(range(len(set(flat))))
    assert len(set(zip(flat, numbers.tolist(), strict=True))) == len(set(flat))


@pytest.mark.parametrize("largest", [5, 300, 70_000])
def test_routes_that_differ_in_one_expert_of_one_layer_differ(largest: int) -> None:
    base = np.zeros((1, 4, 2), np.int64)
    base[0, 0, 1] = largest
    others = [base]
    for layer in range(4):
        for expert in (1, 256):
            changed = base.copy()
            changed[0, layer, 0] = expert
            others.append(changed)
    numbers = {int(key[0]) for key in number_routes(others)}
    assert len(numbers) == len({(layer, e) for layer in range(4) for e in (1, 256)}) + 1


def test_tokens_of_other_experts_do_not_merge_nor_what_follows_them() -> None:
    tokens = [[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 5]]
    routes = np.zeros((3, 4, 2, 2), np.int64)
    routes[..., 1] = 1
    routes[1, 2, 1] = (2, 3)
    routes[2] = routes[2, :, :, ::-1]
    tree = build_prefix_tree(tokens, keys=number_routes(list(routes)))
    assert tree.num_tokens == 2 + 2 + 1 + 2
    shared = [set(tree.positions(s).tolist()) for s in range(3)]
    assert len(shared[0] & shared[1]) == 2
    assert len(shared[0] & shared[2]) == 3
    keys = number_routes(list(routes))
    batch = pack([Sample(row, keys=key) for row, key in zip(tokens, keys, strict=True)])
    assert batch.num_tokens == tree.num_tokens
    assert pack(tokens).num_tokens == 5


def test_other_keys_are_kept() -> None:
    routes = torch.zeros(2, 3, 1, 2, dtype=torch.int64)
    first, second = number_routes(list(routes), keys=[[0, 0, 2**40], [0, 1, 2**40]])
    assert first[0] == second[0]
    assert first[1] != second[1]
    assert first[2] == second[2] != first[0]


def test_empty_sequences_have_no_keys() -> None:
    keys = number_routes([[], np.zeros((2, 1, 1), np.int64), []])
    assert [len(key) for key in keys] == [0, 2, 0]
    assert [len(key) for key in number_routes([[], []])] == [0, 0]


@pytest.mark.parametrize(
    ("routes", "keys", "error", "said"),
    [
        ([], None, ValueError, "at least one sequence"),
        ([[[[0.5]]]], None, TypeError, r"routes\[0\] must be integers"),
        ([[[[0]]], [[0]]], None, ValueError, r"routes\[1\] must have shape \[tokens, layers, k\]"),
        ([[[[0]]], [[[0], [1]]]], None, ValueError, r"routes\[1\] must have 1 layers of 1 experts"),
        ([[[[0]]]], [[1, 2]], ValueError, r"keys must have one entry per token"),
        ([[[[0]]]], [[0.5]], TypeError, r"keys\[0\] must be integers"),
    ],
)
def test_wrong_routes_are_refused(routes, keys, error, said) -> None:
    with pytest.raises(error, match=said):
        number_routes(routes, keys=keys)
