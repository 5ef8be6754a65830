"""The parts of a batch that go through the model one after the other: its partitions, as rows.

What the rows read of each other is worked out here, on the host; the tensors that travel are
`gateway`'s, and in what order the rows run is the affair of whoever runs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from treetrain.packing.batch import Batch
from treetrain.packing.packed_tree import PackedTree, pack_tree
from treetrain.packing.target_parts import cut_targets
from treetrain.packing.targets import TargetPart, Targets, TargetTensors
from treetrain.tree.context import context_tree
from treetrain.tree.partition import Partitions
from treetrain.tree.prefix_tree import Ints


@dataclass(frozen=True, eq=False)
class BatchPart:
    """A partition of a batch, or the whole of it, as one packed row.

    Attributes:
        packed: the row; the tree's tokens before it are the partition's ancestors.
        places: packed index in the batch of each token of the row, [T] int64.
        part: the batch's targets whose predictors stand in the row.
        ancestors: where the ancestors' keys and values are, in the order of the path: index of a
            part, and which of the tokens that it keeps.
        kept: rows whose keys and values later parts read, ascending and disjoint.
    """

    packed: PackedTree
    places: Ints
    part: TargetPart
    ancestors: tuple[tuple[int, slice], ...] = ()
    kept: tuple[slice, ...] = ()

    @cached_property
    def target_tensors(self) -> TargetTensors:
        """`part.targets` on the row's device."""
        return self.part.targets.tensors(self.packed.device)

    def nodes(self, batch: Batch) -> Tensor:
        """Node of the batch's tree that holds each token of the row, [T] int64, on its device."""
        return torch.tensor(batch.tree.token_nodes[self.places], device=self.packed.device)


def whole_batch(batch: Batch, *, untrained: bool = False) -> BatchPart:
    """Take a batch as its only part.

    Args:
        batch: the batch.
        untrained: whether the part's targets are `batch.all_targets`.

    Returns:
        The part; its row is `batch.packed` itself.
    """
    targets = batch.all_targets if untrained else batch.targets
    part = TargetPart(
        targets=targets,
        places=np.arange(len(targets), dtype=np.int64),
        edges=np.arange(len(targets.edge_targets), dtype=np.int64),
    )
    return _WholeBatch(
        packed=batch.packed,
        places=np.arange(batch.num_tokens, dtype=np.int64),
        part=part,
        batch=batch,
        untrained=untrained,
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class _WholeBatch(BatchPart):
    """A batch as its only part; tensors that the batch keeps are not made again."""

    batch: Batch
    untrained: bool

    @cached_property
    def target_tensors(self) -> TargetTensors:
        return self.batch.all_target_tensors if self.untrained else self.batch.target_tensors


def cut_batch(
    batch: Batch, partitions: Partitions, *, targets: Targets | None = None
) -> list[BatchPart]:
    """Cut a batch into the rows of its partitions.

    Args:
        batch: the batch.
        partitions: a division of the batch's tree.
        targets: the targets that the parts divide; None: those that are trained.

    Returns:
        One part per partition, in the order of the partitions.

    Raises:
        ValueError: the partitions are those of another tree.

    Example:
        >>> from treetrain.packing.batch import pack
        >>> from treetrain.tree.partition import partition_tree
        >>> batch = pack([[1, 2, 3, 4], [1, 2, 5]])
        >>> [part.places.tolist() for part in cut_batch(batch, partition_tree(batch.tree, 3))]
        [[0, 1, 2], [3, 4]]
    """  # noqa: DOC502 (the check raises)
    check_partitions(batch, partitions)
    contexts = [context_tree(partitions, p) for p in range(partitions.num_partitions)]
    ancestors = [int(size) for size in partitions.gateway_sizes]
    owners = np.empty(batch.num_tokens, np.int64)
    rows = np.empty(batch.num_tokens, np.int64)
    is_read = np.zeros(batch.num_tokens, bool)
    for p, (_, places) in enumerate(contexts):
        own = places[ancestors[p] :]
        owners[own] = p
        rows[own] = np.arange(len(own))
        is_read[places[: ancestors[p]]] = True
    stored = np.empty(batch.num_tokens, np.int64)
    kept: list[tuple[slice, ...]] = []
    for p, (_, places) in enumerate(contexts):
        own = places[ancestors[p] :]
        read = np.flatnonzero(is_read[own])
        stored[own[read]] = np.arange(len(read))
        kept.append(tuple(find_intervals(read)))
    divided = cut_targets(
        batch.targets if targets is None else targets,
        owners,
        rows,
        num_parts=partitions.num_partitions,
    )
    return [
        BatchPart(
            packed=pack_tree(tree, batch.device, ancestors=ancestors[p]),
            places=places[ancestors[p] :],
            part=divided[p],
            ancestors=tuple(find_segments(places[: ancestors[p]], owners, stored)),
            kept=kept[p],
        )
        for p, (tree, places) in enumerate(contexts)
    ]


def check_partitions(batch: Batch, partitions: Partitions) -> None:
    """Refuse partitions of another tree.

    Args:
        batch: the batch.
        partitions: the partitions.

    Raises:
        ValueError: they do not divide the batch's tree.
    """
    if not np.array_equal(partitions.tree.tokens, batch.tree.tokens) or not np.array_equal(
        partitions.tree.token_subtree_ends, batch.tree.token_subtree_ends
    ):
        raise ValueError(
            f"partitions must divide the batch's tree of {batch.num_tokens} tokens, got those of "
            f"another one of {partitions.tree.num_tokens}; call partition_tree(batch.tree, "
            "capacity)"
        )


def find_segments(path: Ints, owners: Ints, stored: Ints) -> list[tuple[int, slice]]:
    """Cut a path into stretches that one part keeps together.

    Args:
        path: packed index in the batch of each token of the path.
        owners: part that holds each token of the batch.
        stored: which of the tokens that its part keeps each token of the batch is.

    Returns:
        For each stretch a part and which of the tokens that it keeps.
    """
    parts, places = owners[path], stored[path]
    breaks = np.flatnonzero((np.diff(parts) != 0) | (np.diff(places) != 1)) + 1
    starts = [0, *breaks.tolist()] if len(path) else []
    ends = [*breaks.tolist(), len(path)]
    return [
        (int(parts[start]), slice(int(places[start]), int(places[end - 1]) + 1))
        for start, end in zip(starts, ends, strict=False)
    ]


def find_intervals(places: Ints) -> Sequence[slice]:
    """Cut integers into intervals of consecutive ones.

    Args:
        places: the integers.

    Returns:
        The intervals, in their order.
    """
    breaks = np.flatnonzero(np.diff(places) != 1) + 1
    starts = [0, *breaks.tolist()] if len(places) else []
    ends = [*breaks.tolist(), len(places)]
    return [
        slice(int(places[start]), int(places[end - 1]) + 1)
        for start, end in zip(starts, ends, strict=False)
    ]
