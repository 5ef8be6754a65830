"""Where the paths of a tree part, summed over places that part in the same way.

In packed order the largest subtree stands first; every other child of a branch point is computed on
its own. Its tokens are counted under the token it begins with, because places with one cause (a
stripped thought, a time stamp) begin alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from treetrain.tree.prefix_tree import PrefixTree

Ints = NDArray[np.int64]

REPEAT_WINDOW = 8
SHOWN_TOKENS = 12


@dataclass(frozen=True)
class Parting:
    """Branches of one tree that begin with the same token, beside a larger sibling.

    Attributes:
        token: the token they begin with.
        places: how many such branches there are.
        tokens: tokens in them, computed apart from the sibling.
        repeated: those that stand in the larger sibling again, in stretches of at least
            `REPEAT_WINDOW` equal tokens: what would be shared, had the paths not parted.
        depth: depth position of the largest of the branches.
        sequences: sequences through it.
        source: where one of them was read, for example "data.jsonl:17: messages[8]", or None.
        before: tokens before it on its path, the last few, int64.
        branch: its first tokens, int64.
        sibling: first tokens of its larger sibling, int64.
    """

    token: int
    places: int
    tokens: int
    repeated: int
    depth: int
    sequences: int
    source: str | None
    before: Ints
    branch: Ints
    sibling: Ints


def find_partings(tree: PrefixTree, sources: Sequence[str | None] = ()) -> list[Parting]:
    """Finds where sharing ends and what that costs.

    Args:
        tree: the tree of one group.
        sources: where each of its sequences was read, in the tree's order; empty: nobody knows.

    Returns:
        One parting for each first token, those with the most repeated tokens first, then those with
        the most tokens.
    """
    lights, heavies = _light_children(tree)
    if not len(lights):
        return []
    starts, ends = tree.node_starts[lights], tree.subtree_ends[lights]
    sizes = ends - starts
    repeated = _repeated_tokens(tree, lights, heavies)
    firsts, kinds = np.unique(tree.tokens[starts], return_inverse=True)
    tokens_of = np.bincount(kinds, sizes).astype(np.int64)
    repeated_of = np.bincount(kinds, repeated).astype(np.int64)
    order = np.lexsort((-tokens_of, -repeated_of))
    found: list[Parting] = []
    for kind in order:
        own = np.flatnonzero(kinds == kind)
        example = own[np.argmax(sizes[own])]
        light, heavy = int(lights[example]), int(heavies[example])
        found.append(
            Parting(
                token=int(firsts[kind]),
                places=len(own),
                tokens=int(tokens_of[kind]),
                repeated=int(repeated_of[kind]),
                depth=int(tree.depth_starts[light]),
                sequences=int(tree.path_counts[light]),
                source=_source(tree, light, sources),
                before=_before(tree, light),
                branch=_beginning(tree, light),
                sibling=_beginning(tree, heavy),
            )
        )
    return found


def merge_partings(several: Iterable[list[Parting]]) -> list[Parting]:
    """Sums the partings of several trees that begin with the same token.

    Args:
        several: partings of each tree.

    Returns:
        One parting for each first token, in the order of `find_partings`; the example is that of
        the tree with the most tokens in them.
    """
    of_token: dict[int, list[Parting]] = {}
    for partings in several:
        for parting in partings:
            of_token.setdefault(parting.token, []).append(parting)
    merged = [
        replace(
            max(own, key=lambda parting: parting.tokens),
            places=sum(parting.places for parting in own),
            tokens=sum(parting.tokens for parting in own),
            repeated=sum(parting.repeated for parting in own),
        )
        for own in of_token.values()
    ]
    return sorted(merged, key=lambda parting: (-parting.repeated, -parting.tokens))


def _light_children(tree: PrefixTree) -> tuple[Ints, Ints]:
    # The first child in packed order has the largest subtree; roots are siblings too.
    _, firsts = np.unique(tree.parents, return_index=True)
    heavy_of = np.full(tree.num_nodes + 1, -1, np.int64)
    heavy_of[tree.parents[firsts]] = firsts
    heavies = heavy_of[tree.parents]
    lights = np.flatnonzero(heavies != np.arange(tree.num_nodes))
    return lights, heavies[lights]


def _repeated_tokens(tree: PrefixTree, lights: Ints, heavies: Ints) -> Ints:
    windows = tree.num_tokens - REPEAT_WINDOW + 1
    starts, ends = tree.node_starts[lights], tree.subtree_ends[lights]
    counts = np.maximum(ends - starts - REPEAT_WINDOW + 1, 0)
    result = np.zeros(len(lights), np.int64)
    if windows <= 0 or not counts.any():
        return result
    hashes = np.zeros(windows, np.int64)
    for step in range(REPEAT_WINDOW):
        hashes = hashes * np.int64(6364136223846793005) + tree.tokens[step : step + windows]
    kinds = np.unique(hashes, return_inverse=True)[1].astype(np.int64)
    places = np.sort(kinds * tree.num_tokens + np.arange(windows))
    owners = np.repeat(np.arange(len(lights)), counts)
    offsets = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    asked = starts[owners] + offsets
    low = kinds[asked] * tree.num_tokens + tree.node_starts[heavies][owners]
    high = kinds[asked] * tree.num_tokens + tree.subtree_ends[heavies][owners] - REPEAT_WINDOW
    after = np.minimum(np.searchsorted(places, low), len(places) - 1)
    hit = (places[after] >= low) & (places[after] <= high)
    # A window that follows a repeated one adds the tokens that the one before did not cover.
    owners, offsets = owners[hit], offsets[hit]
    gaps = np.diff(offsets, prepend=0)
    fresh = np.concatenate([[True], owners[1:] != owners[:-1]]) if len(owners) else gaps > 0
    added = np.where(fresh, REPEAT_WINDOW, np.minimum(gaps, REPEAT_WINDOW))
    np.add.at(result, owners, added)
    return result


def _source(tree: PrefixTree, node: int, sources: Sequence[str | None]) -> str | None:
    """Where the first of the sequences through a node was read."""
    if not sources:
        return None
    ends = tree.node_starts[tree.sequence_nodes]
    below = (ends >= tree.node_starts[node]) & (ends < tree.subtree_ends[node])
    # An empty sequence ends in no node: its -1 reads the last entry, which lies below nothing.
    return sources[int(np.argmax(below))]


def _beginning(tree: PrefixTree, node: int) -> Ints:
    # Below the node, packed order goes on along its largest path.
    start, end = int(tree.node_starts[node]), int(tree.subtree_ends[node])
    return tree.tokens[start : min(end, start + SHOWN_TOKENS)]


def _before(tree: PrefixTree, node: int) -> Ints:
    pieces: list[Ints] = []
    wanted, parent = SHOWN_TOKENS, int(tree.parents[node])
    while wanted > 0 and parent >= 0:
        start, end = int(tree.node_starts[parent]), int(tree.node_starts[parent + 1])
        pieces.insert(0, tree.tokens[max(start, end - wanted) : end])
        wanted -= end - start
        parent = int(tree.parents[parent])
    return np.concatenate(pieces) if pieces else np.empty(0, np.int64)
