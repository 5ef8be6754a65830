"""Building prefix trees from sequences, and joining trees into a forest.

Sequences are sorted as bytes, which brings shared prefixes together; the common prefixes of
neighbours then say where the nodes are. The order of sorting never shows in the result.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treetrain.errors import check_type
from treetrain.tree.common_prefixes import enclosing_groups, neighbour_prefixes
from treetrain.tree.kinds import token_kind
from treetrain.tree.layout import UnorderedNodes, lay_out
from treetrain.tree.prefix_tree import PrefixTree
from treetrain.tree.ranges import Ints, offsets_of, range_minima
from treetrain.tree.read import list_rows, read_keys, read_rows


def build_prefix_tree(sequences: Iterable[Any], keys: Iterable[Any] | None = None) -> PrefixTree:
    """Build the prefix tree of sequences.

    Equal prefixes are stored once. A sequence may be a prefix of another, equal another, or be
    empty; each keeps its own entry. Another order of the sequences changes only indices: that of
    the sequences, and the places of siblings.

    Args:
        sequences: token ids of each sequence, 0 to 2^31 - 1: lists, tuples, integer arrays or CPU
            tensors, or a two-dimensional array.
        keys: for each sequence one more int64 per token (image content, adapter, executed route)
            that has to be equal too for tokens to merge, or None.

    Returns:
        The tree; its per-sequence entries are in the order of `sequences`.

    Raises:
        TypeError: a sequence or a token is not of the kind above; names the first.
        ValueError: there is no sequence, a token is out of range, or `keys` has not the shape of
            `sequences`; names the first.

    Example:
        >>> tree = build_prefix_tree([[1, 2, 3, 4, 5], [1, 2, 3, 6, 7], [1, 2, 3, 6, 7, 8, 9]])
        >>> tree.tokens.tolist()
        [1, 2, 3, 6, 7, 8, 9, 4, 5]
        >>> tree.node_starts.tolist(), tree.parents.tolist(), tree.path_counts.tolist()
        ([0, 3, 5, 7, 9], [-1, 0, 1, 0], [3, 2, 1, 1])
    """  # noqa: DOC503 (reading the rows raises too)
    rows = list_rows(sequences, "sequences")
    if not rows:
        raise ValueError("sequences must hold at least one sequence, got none")
    tokens, offsets = read_rows(rows, token_kind("sequences"))
    flat_keys = None if keys is None else read_keys(keys, offsets, beside="sequences")
    words, width = _to_words(tokens, flat_keys)
    lengths = np.diff(offsets)
    order = _sort_sequences(words, offsets * width)
    order = order[lengths[order] > 0]
    shared = neighbour_prefixes(words, offsets[order] * width, lengths[order] * width) // width
    nodes, ends = _find_nodes(lengths[order], shared, sources=offsets[order], order=order)
    sequence_nodes = np.full(len(rows), -1, np.int64)
    sequence_nodes[order] = ends
    return lay_out(nodes, tokens, flat_keys, sequence_nodes=sequence_nodes)


def concatenate_trees(trees: Iterable[PrefixTree]) -> PrefixTree:
    """Join trees into one forest, tree after tree; nothing merges across them.

    Args:
        trees: the trees, all with keys or all without.

    Returns:
        One tree whose packed order, nodes and sequences are those of the trees in their order.

    Raises:
        ValueError: there is no tree, or only some have keys.
    """
    check_type("trees", trees, Iterable, "a list of prefix trees")
    parts = list(trees)
    for index, part in enumerate(parts):
        check_type(f"trees[{index}]", part, PrefixTree, "a PrefixTree")
    if not parts:
        raise ValueError("trees must hold at least one tree, got none")
    keys = [part.keys for part in parts if part.keys is not None]
    if 0 < len(keys) < len(parts):
        without = next(index for index, part in enumerate(parts) if part.keys is None)
        raise ValueError(
            f"trees must all have keys or all have none, got none for trees[{without}]; "
            "build it with keys of zeros"
        )
    tokens = offsets_of(np.array([part.num_tokens for part in parts]))
    nodes = offsets_of(np.array([part.num_nodes for part in parts]))[:-1].tolist()
    starts = tokens[:-1].tolist()
    return PrefixTree(
        tokens=np.concatenate([part.tokens for part in parts]),
        keys=np.concatenate(keys) if keys else None,
        node_starts=np.concatenate(
            [part.node_starts[:-1] + start for part, start in zip(parts, starts, strict=True)]
            + [tokens[-1:]]
        ),
        parents=_shift_nodes([part.parents for part in parts], nodes),
        path_counts=np.concatenate([part.path_counts for part in parts]),
        depth_starts=np.concatenate([part.depth_starts for part in parts]),
        subtree_ends=np.concatenate(
            [part.subtree_ends + start for part, start in zip(parts, starts, strict=True)]
        ),
        sequence_nodes=_shift_nodes([part.sequence_nodes for part in parts], nodes),
    )


def _shift_nodes(parts: list[Ints], shifts: list[int]) -> Ints:
    return np.concatenate(
        [np.where(part >= 0, part + shift, -1) for part, shift in zip(parts, shifts, strict=True)]
    )


def _to_words(tokens: NDArray[Any], keys: Ints | None) -> tuple[NDArray[np.int32], int]:
    """Return tokens, with their keys beside them, as 32-bit words, and the words of one token."""
    if keys is None:
        return tokens.astype(np.int32, copy=False), 1
    words = np.empty((len(tokens), 3), np.int32)
    words[:, 0] = tokens
    words[:, 1:] = keys.view(np.int32).reshape(-1, 2)
    return words.reshape(-1), 3


def _sort_sequences(words: NDArray[np.int32], offsets: Ints) -> Ints:
    """Return the indices of the sequences sorted as bytes; equal ones keep their order."""
    data = words.tobytes()
    bounds = (offsets * words.itemsize).tolist()
    pieces = [data[start:end] for start, end in pairwise(bounds)]
    return np.array(sorted(range(len(pieces)), key=pieces.__getitem__), np.int64)


def _find_nodes(
    lengths: Ints, shared: Ints, *, sources: Ints, order: Ints
) -> tuple[UnorderedNodes, Ints]:
    """Find the nodes of sorted sequences.

    A node ends where a sequence ends or where two neighbours part; it is known by the first sorted
    sequence through it and the depth at which it ends.

    Args:
        lengths: tokens of each sorted sequence, at least 1, [n].
        shared: tokens that each has in common with the one before it, [n]; 0 for the first.
        sources: flat index of each sequence's first token, [n].
        order: input index of each sorted sequence, [n].

    Returns:
        The nodes in depth-first order, and the node in which each sorted sequence ends, [n].
    """
    count = len(lengths)
    group_firsts, group_ends = enclosing_groups(shared)
    sequences = np.arange(count, dtype=np.int64)
    # A sequence equal to the one before it ends where that one does.
    end_firsts = np.where(lengths > shared, sequences, group_firsts)
    next_shared = np.append(shared[1:], 0) if count else shared
    next_ends = np.append(group_ends[1:], count) if count else shared
    end_ends = np.where(next_shared < lengths, sequences + 1, next_ends)
    parts = shared > 0
    # One number for (first sequence, depth of the end): sorted, the nodes come depth-first.
    stride = int(lengths.max(initial=0)) + 1
    end_names = end_firsts * stride + lengths
    branch_names = group_firsts * stride + shared
    names = np.concatenate([end_names, branch_names[parts]])
    chosen = np.argsort(names, kind="stable")
    chosen = chosen[np.diff(names[chosen], prepend=-1) > 0]
    names = names[chosen]
    firsts, depth_ends = np.divmod(names, stride)
    ends = np.concatenate([end_ends, group_ends[parts]])[chosen]
    is_new = np.diff(firsts, prepend=-1) > 0
    before = np.arange(-1, len(names) - 1, dtype=np.int64)
    hangs_at = np.searchsorted(names, branch_names[firsts])
    shared_here = shared[firsts]
    depth_starts = np.where(is_new, shared_here, depth_ends[before])
    nodes = UnorderedNodes(
        sources=sources[firsts] + depth_starts,
        lengths=depth_ends - depth_starts,
        parents=np.where(is_new, np.where(shared_here > 0, hangs_at, -1), before),
        ends=np.searchsorted(firsts, ends),
        depth_starts=depth_starts,
        path_counts=ends - firsts,
        first_sequences=range_minima(order, firsts, ends),
    )
    return nodes, np.searchsorted(names, end_names)
