"""Divisions of a tree by how many partitions they make, for tests and benchmarks."""

from __future__ import annotations

from treetrain.tree.partition import Partitions, partition_tree
from treetrain.tree.prefix_tree import PrefixTree


def cut_into(tree: PrefixTree, count: int) -> Partitions:
    """Divide a tree by the largest capacity that makes at least so many partitions.

    Args:
        tree: the tree.
        count: fewest partitions.

    Returns:
        The division.

    Raises:
        ValueError: no capacity makes so many, for example more than the tree has tokens.
    """
    for capacity in range(tree.num_tokens, 0, -1):
        partitions = partition_tree(tree, capacity)
        if partitions.num_partitions >= count:
            return partitions
    raise ValueError(
        f"count must be a number of partitions that {tree!r} can be divided into, got {count}"
    )


def depth_of_cuts(partitions: Partitions) -> int:
    """Count the cuts that partitions hang below.

    Args:
        partitions: a division.

    Returns:
        Most cuts between a partition and the one it hangs from at the top, 0 where none hangs from
        another.
    """
    depths: list[int] = []
    for parent in partitions.parents.tolist():
        depths.append(0 if parent < 0 else depths[parent] + 1)
    return max(depths, default=0)
