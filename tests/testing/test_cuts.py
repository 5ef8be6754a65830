from __future__ import annotations

import pytest

from treetrain.testing.cuts import cut_into, depth_of_cuts
from treetrain.testing.trees import tree_family
from treetrain.tree.build import build_prefix_tree
from treetrain.tree.partition import partition_tree


def test_the_largest_capacity_that_makes_so_many_partitions_is_taken():
    tree = build_prefix_tree([[1, 2, 3, 4, 5, 6]])
    assert cut_into(tree, 1).capacity == 6
    partitions = cut_into(tree, 3)
    assert (partitions.num_partitions, partitions.capacity) == (3, 2)
    with pytest.raises(ValueError, match="divided into, got 7"):
        cut_into(tree, 7)


def test_cuts_are_counted_along_the_deepest_path():
    tree = build_prefix_tree([[1, 2, 3, 4, 5, 6]])
    assert depth_of_cuts(partition_tree(tree, 6)) == 0
    assert depth_of_cuts(partition_tree(tree, 2)) == 2
    star = build_prefix_tree(tree_family()["star"])
    assert depth_of_cuts(cut_into(star, 8)) < 7
