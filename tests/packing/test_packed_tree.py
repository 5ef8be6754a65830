from __future__ import annotations

import torch
from torch.utils.checkpoint import checkpoint

from treetrain.packing.packed_tree import pack_tree
from treetrain.tree.build import build_prefix_tree

SEQUENCES = [[1, 2, 3, 4, 5], [1, 2, 3, 6, 7], [1, 2, 3, 6, 7, 8, 9]]


def test_tensors_describe_the_worked_example():
    packed = pack_tree(build_prefix_tree(SEQUENCES))
    assert packed.tokens.tolist() == [[1, 2, 3, 6, 7, 8, 9, 4, 5]]
    assert packed.depth_positions.tolist() == [[0, 1, 2, 3, 4, 5, 6, 3, 4]]
    assert packed.subtree_ends.tolist() == [9, 9, 9, 7, 7, 7, 7, 9, 9]
    assert {packed.tokens.dtype, packed.subtree_ends.dtype} == {torch.int64}


def test_same_device_keeps_the_object_and_its_plans():
    packed = pack_tree(build_prefix_tree(SEQUENCES))
    packed.plans["backend"] = 1
    assert packed.to("cpu") is packed


def test_other_device_starts_without_plans():
    packed = pack_tree(build_prefix_tree(SEQUENCES))
    packed.plans["backend"] = 1
    moved = packed.to("meta")
    assert moved.device.type == "meta"
    assert moved.plans == {}
    assert moved.tree is packed.tree


def test_checkpoint_hands_over_the_very_object_in_the_recomputation():
    packed = pack_tree(build_prefix_tree(SEQUENCES))
    seen = []

    def layer(x, *, packed_tree):
        seen.append(packed_tree)
        return (x * packed_tree.num_tokens).square()

    x = torch.ones(2, requires_grad=True)
    checkpoint(layer, x, packed_tree=packed, use_reentrant=False).sum().backward()
    assert [tree is packed for tree in seen] == [True, True]
    assert x.grad.tolist() == [162.0, 162.0]


def test_two_equal_trees_are_two_hashable_objects():
    tree = build_prefix_tree(SEQUENCES)
    assert len({pack_tree(tree), pack_tree(tree)}) == 2
