"""Building a prefix tree from nodes with parent links, for callers that already have a tree.

The caller's nodes need not be those of a prefix tree: siblings may start alike, a node may have a
single child, nodes may come in any order. The sequences are never written out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treetrain.tree.kinds import index_kind, token_kind
from treetrain.tree.layout import UnorderedNodes, lay_out
from treetrain.tree.merge import merge_tokens
from treetrain.tree.prefix_tree import PrefixTree
from treetrain.tree.ranges import Ints, offsets_of, range_minima, sum_along_paths, take_ranges
from treetrain.tree.read import list_rows, read_keys, read_row, read_rows


@dataclass(frozen=True)
class _Pieces:
    """Stretches of flat tokens hanging from one another.

    Attributes:
        tokens: flat tokens, [n].
        keys: flat keys, [n], or None.
        starts: flat index of each piece's first token, [P].
        lengths: tokens of each piece, [P].
        parents: index of the piece that each hangs from, [P]; -1 for none.
        ends: piece in which each sequence ends, [S]; -1 for an empty sequence.
    """

    tokens: NDArray[Any]
    keys: Ints | None
    starts: Ints
    lengths: Ints
    parents: Ints
    ends: Ints


def build_from_nodes(
    node_tokens: Iterable[Any],
    parents: Sequence[int] | NDArray[Any],
    *,
    sequence_nodes: Sequence[int] | NDArray[Any] | None = None,
    keys: Iterable[Any] | None = None,
) -> PrefixTree:
    """Build the prefix tree of the sequences that a tree of nodes stands for.

    The result equals `build_prefix_tree` of the sequences written out: siblings that start alike
    are merged, a node with a single child is joined with it where no sequence ends in between, and
    nodes below which no sequence ends are left out.

    Args:
        node_tokens: token ids of each node, 0 to 2^31 - 1, as `build_prefix_tree` takes sequences.
            A node without tokens stands for its parent, or for the place before all tokens.
        parents: node index of each node's parent, [N], in any order; -1 for a root.
        sequence_nodes: node in which each sequence ends, [S]; a node may be named twice, -1 is an
            empty sequence. None: one sequence for each node without children, in node order.
        keys: for each node one more int64 per token that has to be equal too for tokens to merge,
            or None.

    Returns:
        The tree; its nodes are its own, its sequences in the order of `sequence_nodes`.

    Raises:
        TypeError: a node, a token or an index is not of the kind above; names the first.
        ValueError: there is no node or no sequence, a token or an index is out of range, the
            lengths differ, or the parents form a cycle; names the first.

    Example:
        >>> tree = build_from_nodes([[1, 2], [3], [4, 5]], [-1, 0, 0])
        >>> tree.tokens.tolist(), tree.sequence_nodes.tolist()
        ([1, 2, 4, 5, 3], [2, 1])
    """  # noqa: DOC502 (reading the nodes raises)
    # Each step replaces the pieces, so that no more than two forms of them are in memory.
    pieces = _read_pieces(node_tokens, parents, sequence_nodes=sequence_nodes, keys=keys)
    pieces = _keep_used(pieces)
    pieces = _merge_siblings(pieces)
    pieces = _join_pieces(pieces)
    return _lay_out_pieces(pieces)


def _read_pieces(
    node_tokens: Iterable[Any],
    parents: Sequence[int] | NDArray[Any],
    *,
    sequence_nodes: Sequence[int] | NDArray[Any] | None,
    keys: Iterable[Any] | None,
) -> _Pieces:
    """Return the caller's nodes as pieces, checked all but for cycles."""
    rows = list_rows(node_tokens, "node_tokens")
    if not rows:
        raise ValueError("node_tokens must hold at least one node, got none")
    tokens, offsets = read_rows(rows, token_kind("node_tokens"))
    flat_keys = None if keys is None else read_keys(keys, offsets, beside="node_tokens")
    links = read_row(parents, index_kind("parents", len(rows)))
    if len(links) != len(rows):
        raise ValueError(
            f"parents must have one entry for each of the {len(rows)} nodes, got {len(links)}"
        )
    if sequence_nodes is None:
        ends = np.flatnonzero(np.bincount(links + 1, minlength=len(rows) + 1)[1:] == 0)
    else:
        ends = read_row(sequence_nodes, index_kind("sequence_nodes", len(rows)))
        if not len(ends):
            raise ValueError("sequence_nodes must hold at least one sequence, got none")
    return _Pieces(tokens, flat_keys, offsets[:-1], np.diff(offsets), links, ends)


def _keep_used(pieces: _Pieces) -> _Pieces:
    """Return the pieces that have tokens and lead to the end of a sequence, depth-first."""
    count = len(pieces.parents)
    order, subtree_ends = _order_depth_first(pieces.parents)
    rank = _renumber(order)
    lengths, parents = pieces.lengths[order], rank[pieces.parents[order]]
    # The nearest piece with tokens, the piece itself or above it; index -1, no piece, finds -1.
    anchors = np.append(np.where(lengths > 0, np.arange(count), parents), -1)
    _follow(anchors)
    ends = anchors[rank[pieces.ends]]
    reached = offsets_of(np.bincount(ends[ends >= 0], minlength=count))
    used = (lengths > 0) & (reached[subtree_ends] > reached[:-1])
    kept = np.flatnonzero(used)
    renumbered = np.full(count + 1, -1, np.int64)
    renumbered[kept] = np.arange(len(kept))
    return _Pieces(
        tokens=pieces.tokens,
        keys=pieces.keys,
        starts=pieces.starts[order][kept],
        lengths=lengths[kept],
        parents=renumbered[anchors[parents[kept]]],
        ends=renumbered[ends],
    )


def _merge_siblings(pieces: _Pieces) -> _Pieces:
    """Return pieces of which no two that hang from the same one start alike."""
    firsts = [pieces.tokens[pieces.starts].astype(np.int64), pieces.parents]
    if pieces.keys is not None:
        firsts.append(pieces.keys[pieces.starts])
    order = np.lexsort(firsts)
    alike = np.ones(max(len(order) - 1, 0), np.bool_)
    for column in firsts:
        alike &= np.diff(column[order]) == 0
    if not alike.any():
        return pieces
    tokens, keys = _gather(pieces, np.arange(len(order)))
    lasts = np.append(np.cumsum(pieces.lengths) - 1, -1)
    before = np.arange(-1, len(tokens) - 1, dtype=np.int64)
    before[lasts[:-1] - pieces.lengths + 1] = lasts[pieces.parents]
    starts, parents, merged = merge_tokens(tokens, keys, before)
    ends = merged[lasts[pieces.ends]]
    return _Pieces(tokens, keys, starts, np.ones(len(starts), np.int64), parents, ends)


def _join_pieces(pieces: _Pieces) -> _Pieces:
    """Join each piece with the one it hangs from, unless paths part or a sequence ends there."""
    count = len(pieces.parents)
    children = np.bincount(pieces.parents[pieces.parents >= 0], minlength=count)
    stops = children > 1
    stops[pieces.ends[pieces.ends >= 0]] = True
    is_head = (pieces.parents < 0) | stops[pieces.parents]
    heads = np.flatnonzero(is_head)
    leaders = np.where(is_head, np.arange(count), pieces.parents)
    _follow(leaders)
    order = np.argsort(leaders, kind="stable")
    tokens, keys = _gather(pieces, order)
    lengths = np.bincount(leaders, pieces.lengths, minlength=count).astype(np.int64)[heads]
    nodes = np.append((np.cumsum(is_head) - 1)[leaders], -1)
    return _Pieces(
        tokens=tokens,
        keys=keys,
        starts=offsets_of(lengths)[:-1],
        lengths=lengths,
        parents=nodes[pieces.parents[heads]],
        ends=nodes[pieces.ends],
    )


def _lay_out_pieces(pieces: _Pieces) -> PrefixTree:
    """Return the tree whose nodes are the pieces."""
    order, subtree_ends = _order_depth_first(pieces.parents)
    rank = _renumber(order)
    ends, lengths = rank[pieces.ends], pieces.lengths[order]
    sequences = np.flatnonzero(ends >= 0)
    reached = offsets_of(np.bincount(ends[sequences], minlength=len(order)))
    first_ends = np.full(len(order), len(ends), np.int64)
    np.minimum.at(first_ends, ends[sequences], sequences)
    nodes = UnorderedNodes(
        sources=pieces.starts[order],
        lengths=lengths,
        parents=rank[pieces.parents[order]],
        ends=subtree_ends,
        depth_starts=sum_along_paths(lengths, subtree_ends) - lengths,
        path_counts=reached[subtree_ends] - reached[:-1],
        first_sequences=range_minima(first_ends, np.arange(len(order)), subtree_ends),
    )
    return lay_out(nodes, pieces.tokens, pieces.keys, sequence_nodes=ends)


def _order_depth_first(parents: Ints) -> tuple[Ints, Ints]:
    """Return the nodes in a depth-first order and where each one's subtree ends in it, [N] each."""
    count = len(parents)
    # A walk around the tree enters node i at step i and leaves it at step count + i. Each step
    # knows the next; how many are left follows by doubling, the walk being one linked list.
    walk_end = 2 * count
    by_parent = np.argsort(parents, kind="stable")
    siblings = parents[by_parent]
    starts_group = np.diff(siblings, prepend=-2) != 0
    following = np.empty(walk_end + 1, np.int64)
    following[:count] = np.arange(count, walk_end)
    first_children = starts_group & (siblings >= 0)
    following[siblings[first_children]] = by_parent[first_children]
    following[count:walk_end] = np.where(parents >= 0, count + parents, walk_end)
    later = np.flatnonzero(~starts_group)
    following[count + by_parent[later - 1]] = by_parent[later]
    following[walk_end] = walk_end
    left = np.ones(walk_end + 1, np.int64)
    left[walk_end] = 0
    for _ in range(walk_end.bit_length()):
        left += left[following]
        following = following[following]
    lost = np.flatnonzero(following != walk_end)
    if len(lost):
        raise ValueError(
            f"parents must lead from every node to a root, got a cycle above node {lost[0]}"
        )
    order = np.argsort(-left[:count])
    sizes = (left[:count] - left[count:walk_end] + 1) // 2
    return order, np.arange(count) + sizes[order]


def _renumber(order: Ints) -> Ints:
    """Return the place of each index in `order`, [n + 1]; index -1, no node, finds -1."""
    places = np.full(len(order) + 1, -1, np.int64)
    places[order] = np.arange(len(order))
    return places


def _follow(links: Ints) -> None:
    """Replace each link by where following it ends, in as many rounds as the depth has bits."""
    while True:
        further = links[links]
        if np.array_equal(further, links):
            return
        links[:] = further


def _gather(pieces: _Pieces, order: Ints) -> tuple[NDArray[Any], Ints | None]:
    starts, lengths = pieces.starts[order], pieces.lengths[order]
    keys = None if pieces.keys is None else take_ranges(pieces.keys, starts, lengths)
    return take_ranges(pieces.tokens, starts, lengths), keys
