"""The largest trees of some samples, which are those worth drawing."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from treetrain.data.sample import Sample
from treetrain.tree.build import build_prefix_tree
from treetrain.tree.prefix_tree import PrefixTree

TREES_DRAWN = 3


def largest_trees(
    samples: Sequence[Sample], count: int = TREES_DRAWN
) -> list[tuple[str, PrefixTree]]:
    """Build the trees of the groups with most tokens.

    Args:
        samples: the sequences; where a group has keys, all of its samples have them.
        count: how many trees at most.

    Returns:
        Name and tree of each, the one with most flat tokens first.
    """
    members: dict[Hashable, list[Sample]] = {}
    for sample in samples:
        members.setdefault(sample.group, []).append(sample)
    largest = sorted(members.items(), key=lambda item: -sum(map(len, item[1])))[:count]
    trees: list[tuple[str, PrefixTree]] = []
    for group, own in largest:
        keys = [sample.keys for sample in own if sample.keys is not None]
        name = "samples without a group" if group is None else f"group {group}"
        trees.append((name, build_prefix_tree([one.tokens for one in own], keys or None)))
    return trees
