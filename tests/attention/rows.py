"""A tree cut at any tokens into rows with ancestors, by brute force, and the gateways between them.

Every token is a node of its own here, and the order of rows and of tokens in them follows from
predecessors alone, so that nothing is shared with the code that cuts trees for training.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from treetrain.packing.gateway import LayerGateway, LayerStore
from treetrain.packing.packed_tree import PackedTree, pack_tree
from treetrain.tree.prefix_tree import PrefixTree


@dataclass
class Row:
    """Packed indices of the whole tree: the ancestors' path, and the row's own tokens in order."""

    path: list[int]
    own: list[int] = field(default_factory=list)
    packed: PackedTree | None = None

    @property
    def tree(self) -> PackedTree:
        assert self.packed is not None
        return self.packed


def cut_tree(
    tree: PrefixTree, cuts: Iterable[int], rng: np.random.Generator | None = None
) -> list[Row]:
    """Rows of a tree cut above some tokens, parents first.

    With `rng` pieces that hang along one path share a row at random, roots among them.
    """
    predecessors = tree.predecessors.tolist()
    cuts = set(cuts)
    paths: list[list[int]] = []
    heads: list[int] = []
    for token, before in enumerate(predecessors):
        paths.append([*(paths[before] if before >= 0 else []), token])
        heads.append(token if before < 0 or token in cuts else heads[before])
    pieces = {head: [t for t, h in enumerate(heads) if h == head] for head in sorted(set(heads))}
    alone = {head: [head] for head in pieces}
    rows = _sort(_fill(_join(pieces, paths, rng) if rng else alone, pieces, paths))
    if rows is None:
        rows = _sort(_fill(alone, pieces, paths))
    assert rows is not None
    for row in rows:
        row.packed = pack_tree(_row_tree(tree, row, predecessors), ancestors=len(row.path))
    return rows


def _join(
    pieces: dict[int, list[int]], paths: list[list[int]], rng: np.random.Generator
) -> dict[int, list[int]]:
    groups: dict[int, list[int]] = {}
    for head in rng.permutation(list(pieces)).tolist():
        for first, group in groups.items():
            joined = [*group, head]
            hanging = sorted((paths[one][:-1] for one in joined), key=len)
            own = {token for one in joined for token in pieces[one]}
            along = all(hanging[-1][: len(one)] == one for one in hanging)
            if along and not own & set(hanging[-1]) and rng.random() < 0.7:
                groups[first] = joined
                break
        else:
            groups[head] = [head]
    return groups


def _fill(
    groups: dict[int, list[int]], pieces: dict[int, list[int]], paths: list[list[int]]
) -> list[Row]:
    rows: list[Row] = []
    for group in groups.values():
        group = sorted(group, key=lambda head: -len(paths[head]))
        rows.append(Row(paths[group[0]][:-1], [token for head in group for token in pieces[head]]))
    return rows


def _sort(rows: list[Row]) -> list[Row] | None:
    """Parents first; None where two rows read each other."""
    done: set[int] = set()
    order: list[Row] = []
    while len(order) < len(rows):
        ready = [row for row in rows if row not in order and done >= set(row.path)]
        if not ready:
            return None
        order += ready
        done.update(token for row in ready for token in row.own)
    return order


def _row_tree(tree: PrefixTree, row: Row, predecessors: list[int]) -> PrefixTree:
    tokens = [*row.path, *row.own]
    place = {token: index for index, token in enumerate(tokens)}
    parents = [place.get(predecessors[token], -1) for token in tokens]
    ends = list(range(1, len(tokens) + 1))
    for index in reversed(range(len(tokens))):
        if parents[index] >= 0:
            ends[parents[index]] = max(ends[parents[index]], ends[index])
    inner = set(parents)
    return PrefixTree(
        tokens=tree.tokens[tokens],
        keys=None,
        node_starts=np.arange(len(tokens) + 1),
        parents=np.array(parents, np.int64),
        path_counts=np.ones(len(tokens), np.int64),
        depth_starts=tree.depth_positions[tokens],
        subtree_ends=np.array(ends, np.int64),
        sequence_nodes=np.array([i for i in range(len(tokens)) if i not in inner], np.int64),
    )


def make_gateways(rows: list[Row], *, copy: bool = True) -> list[LayerGateway]:
    """The gateway of each row in one attention layer."""
    read = {token for row in rows for token in row.path}
    stores = [LayerStore() for _ in rows]
    places: dict[int, tuple[int, int]] = {}
    kept: list[list[slice]] = []
    for number, row in enumerate(rows):
        left = [index for index, token in enumerate(row.own) if token in read]
        places |= {row.own[index]: (number, place) for place, index in enumerate(left)}
        kept.append([slice(start, end) for _, start, end in _stretches((0, i) for i in left)])
    return [
        LayerGateway(
            ancestors=[
                (stores[owner], slice(start, end))
                for owner, start, end in _stretches(places[token] for token in row.path)
            ],
            kept=[(stores[number], kept[number])] if kept[number] else [],
            copy=copy,
        )
        for number, row in enumerate(rows)
    ]


def _stretches(places: Iterable[tuple[int, int]]) -> list[tuple[int, int, int]]:
    found: list[tuple[int, int, int]] = []
    for owner, place in places:
        if found and found[-1][0] == owner and found[-1][2] == place:
            found[-1] = (owner, found[-1][1], place + 1)
        else:
            found.append((owner, place, place + 1))
    return found
