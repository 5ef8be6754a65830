"""Several parts of a batch as one row, for a forward pass that only fills their stores.

Which parts are joined is the affair of whoever runs them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from treetrain.packing.batch import Batch
from treetrain.packing.packed_tree import PackedTree, pack_tree
from treetrain.packing.parts import BatchPart, find_intervals, find_segments
from treetrain.tree.context import context_tree
from treetrain.tree.partition import Partitions
from treetrain.tree.ranges import join_ranges


@dataclass(frozen=True, eq=False)
class JoinedParts:
    """Consecutive parts, each hanging from the one before, as one packed row.

    Attributes:
        packed: the row; the tree's tokens before it are the ancestors of the first part.
        ancestors: as in `BatchPart`.
        kept: for each of the parts its index, and the rows that hold what it keeps, in the order in
            which it keeps them.
    """

    packed: PackedTree
    ancestors: tuple[tuple[int, slice], ...]
    kept: tuple[tuple[int, tuple[slice, ...]], ...]


def join_parts(
    batch: Batch, partitions: Partitions, parts: Sequence[BatchPart], groups: Sequence[range]
) -> list[JoinedParts]:
    """Join parts of a batch.

    Args:
        batch: the batch.
        partitions: the division of its tree.
        parts: its parts, from `cut_batch(batch, partitions)`.
        groups: which parts are joined: disjoint, ascending, each part but the first of a group
            hanging from the one before it.

    Returns:
        One row per group.

    Example:
        >>> from treetrain.packing.batch import pack
        >>> from treetrain.packing.parts import cut_batch
        >>> from treetrain.tree.partition import partition_tree
        >>> batch = pack([[1, 2, 3, 4, 5, 6, 7]])
        >>> partitions = partition_tree(batch.tree, 3)
        >>> parts = cut_batch(batch, partitions)
        >>> [joined] = join_parts(batch, partitions, parts, [range(2)])
        >>> joined.packed.tokens.tolist(), joined.kept
        ([[1, 2, 3, 4, 5, 6]], ((0, (slice(0, 3, None),)), (1, (slice(3, 6, None),))))
    """
    owners = np.empty(batch.num_tokens, np.int64)
    stored = np.empty(batch.num_tokens, np.int64)
    read = [_read_places(part) for part in parts]
    for number, part in enumerate(parts):
        owners[part.places] = number
        stored[read[number]] = np.arange(len(read[number]))
    firsts = np.arange(len(parts))
    for group in groups:
        firsts[group.start : group.stop] = group.start
    heads, numbers = np.unique(firsts, return_inverse=True)
    parents = partitions.parents[heads]
    coarse = dataclasses.replace(
        partitions,
        node_partitions=numbers[partitions.node_partitions],
        parents=np.where(parents >= 0, numbers[parents], -1),
    )
    rows = np.empty(batch.num_tokens, np.int64)
    joined: list[JoinedParts] = []
    for group in groups:
        number = int(numbers[group.start])
        tree, places = context_tree(coarse, number)
        size = int(coarse.gateway_sizes[number])
        rows[places[size:]] = np.arange(len(places) - size)
        joined.append(
            JoinedParts(
                packed=pack_tree(tree, batch.device, ancestors=size),
                ancestors=tuple(find_segments(places[:size], owners, stored)),
                kept=tuple((part, tuple(find_intervals(rows[read[part]]))) for part in group),
            )
        )
    return joined


def _read_places(part: BatchPart) -> np.ndarray:
    """Packed index in the batch of each token that a part keeps, in the order of its store."""
    starts = np.array([rows.start for rows in part.kept], np.int64)
    ends = np.array([rows.stop for rows in part.kept], np.int64)
    return part.places[join_ranges(starts, ends - starts)]
