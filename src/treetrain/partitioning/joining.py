"""Which partitions run their first forward pass as one row, where activations are computed again.

A pass without gradients holds one layer at a time, so that several partitions take less memory in
it than the graph of one of them takes later, and its matrix products are the larger for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from treetrain.models.guards import is_checkpointing
from treetrain.models.named_routers import list_routers
from treetrain.models.prepared import PreparedModel
from treetrain.packing.batch import Batch
from treetrain.packing.joined_parts import JoinedParts, join_parts
from treetrain.packing.parts import BatchPart
from treetrain.partitioning.modes import Mode
from treetrain.tree.partition import Partitions


def find_joined(
    prepared: PreparedModel,
    batch: Batch,
    partitions: Partitions,
    *,
    parts: Sequence[BatchPart],
    modes: Sequence[Mode],
    wanted: Sequence[bool],
) -> list[JoinedParts]:
    """Find which parts of a batch to join; the latest found are kept with its packed row.

    Where tokens choose experts none are joined: another size of a matrix product may turn a tie,
    and descendants would have read of other experts than those that get the gradient. Where the
    model checkpoints, the graph of a partition is itself little more than one layer, and several
    partitions would take more than it.

    Args:
        prepared: handle of the model.
        batch: the batch.
        partitions: the division of its tree.
        parts: its parts.
        modes: what each does with its activations while its descendants run.
        wanted: whether each runs at all.

    Returns:
        One row for each group of two parts or more.
    """
    if "recompute" not in modes or is_checkpointing(prepared.decoder):
        return []
    if list_routers(prepared.model, prepared.decoder):
        return []
    inner = set(partitions.parents.tolist())
    joins = [
        wanted[part] and modes[part] == "recompute" and part in inner for part in range(len(parts))
    ]
    groups = list(_group(partitions, joins, most=len(prepared.layers) // 2))
    kept = batch.packed.plans.get("joined")
    if kept is None or kept[0] is not parts or kept[1] != groups:
        kept = (parts, groups, join_parts(batch, partitions, parts, groups))
        batch.packed.plans["joined"] = kept
    return kept[2]


def _group(partitions: Partitions, joins: Sequence[bool], *, most: int) -> Iterator[range]:
    """Group partitions that hang from one another, `most` times the largest of them at most."""
    first = 0
    while first < partitions.num_partitions:
        end, tokens, largest = first, 0, 0
        while end < partitions.num_partitions and joins[end]:
            tokens += int(partitions.sizes[end])
            largest = max(largest, int(partitions.sizes[end]))
            if tokens > most * largest or (end > first and partitions.parents[end] != end - 1):
                break
            end += 1
        if end > first + 1:
            yield range(first, end)
        first = max(end, first + 1)
