"""A batch's targets divided among the rows that its partitions are computed in.

Which token stands in which row is decided elsewhere. The cost is that of the batch once, however
many rows there are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from treetrain.packing.targets import TargetPart, Targets
from treetrain.tree.prefix_tree import Ints
from treetrain.tree.ranges import offsets_of


def cut_targets(
    targets: Targets, rows: Ints, row_places: Ints, *, num_parts: int
) -> list[TargetPart]:
    """Divide targets by the row of their predictors.

    A target across a cut, the first token of a partition that hangs from another, belongs to the
    row of its predictor. An edge goes with its target; one that has none is in no part. In a part,
    targets stand in the order of their predictors' places in the row, those of one predictor in
    the batch's order, and `sequence_offsets` tells only the sequences that have edges in it, in
    order: S + 1 of them for each of many parts would cost more than the parts.

    Args:
        targets: the targets of the batch, M of them on E flat edges.
        rows: which part holds each packed token of the batch, [T] int64, 0 to `num_parts` - 1.
        row_places: place of each packed token in the row of its part, [T] int64.
        num_parts: number of parts.

    Returns:
        The targets of each part; every target and every edge that has one is in exactly one.

    Raises:
        ValueError: `rows` and `row_places` are no two arrays of one length, a predictor has no
            entry there, or a row is out of range.

    Example:
        >>> from treetrain.packing.targets import find_targets
        >>> from treetrain.tree.build import build_prefix_tree
        >>> tree = build_prefix_tree([[1, 2, 3], [1, 2, 4]])
        >>> targets = find_targets(tree, np.ones(6))
        >>> rows, places = np.array([0, 0, 0, 1]), np.array([0, 1, 2, 0])
        >>> parts = cut_targets(targets, rows, places, num_parts=2)
        >>> [part.targets.tokens.tolist() for part in parts]
        [[2, 3, 4], []]
    """  # noqa: DOC502 (the check raises)
    _check_rows(targets, rows, row_places, num_parts)
    parts = rows[targets.predictors]
    places = row_places[targets.predictors]
    cut = _cut(np.lexsort((places, parts)), parts, places, num_parts=num_parts)
    edges = _cut_edges(targets, parts, num_parts)
    # Index of each target within its part.
    local = np.empty(len(targets), np.int64)
    local[cut.order] = np.arange(len(targets)) - cut.bounds[parts[cut.order]]
    packed = targets.packed_indices[cut.order]
    packed = np.where(rows[packed] == parts[cut.order], row_places[packed], -1)
    tokens, weights = targets.tokens[cut.order], targets.weights[cut.order]
    edge_targets = local[targets.edge_targets[edges.order]]
    edge_weights = targets.edge_weights[edges.order]
    found: list[TargetPart] = []
    for part in range(num_parts):
        some, shared = cut.stretch(part), edges.stretch(part)
        distinct = cut.firsts_of(part)
        own = Targets(
            packed_indices=packed[some],
            predictors=cut.values[some],
            tokens=tokens[some],
            weights=weights[some],
            distinct_predictors=cut.values[distinct],
            predictor_of_target=cut.numbers[some] - int(cut.first_bounds[part]),
            target_offsets=np.append(distinct, some.stop) - some.start,
            edge_targets=edge_targets[shared],
            edge_weights=edge_weights[shared],
            sequence_offsets=np.append(edges.firsts_of(part), shared.stop) - shared.start,
        )
        found.append(TargetPart(own, places=cut.order[some], edges=edges.order[shared]))
    return found


@dataclass(frozen=True, eq=False)
class _Cut:
    """Things sorted by part, and in each part by a value of theirs.

    Attributes:
        order: which thing stands at each place, [n].
        values: its value, [n].
        bounds: first place of each part, [parts + 1].
        firsts: places at which a part or a value begins, [m].
        numbers: which of those each place belongs to, [n].
        first_bounds: first entry of `firsts` of each part, [parts + 1].
    """

    order: Ints
    values: Ints
    bounds: Ints
    firsts: Ints
    numbers: Ints
    first_bounds: Ints

    def stretch(self, part: int) -> slice:
        return slice(int(self.bounds[part]), int(self.bounds[part + 1]))

    def firsts_of(self, part: int) -> Ints:
        return self.firsts[self.first_bounds[part] : self.first_bounds[part + 1]]


def _cut(order: Ints, parts: Ints, values: Ints, *, num_parts: int) -> _Cut:
    parts, values = parts[order], values[order]
    is_first = np.ones(len(order), bool)
    is_first[1:] = (values[1:] != values[:-1]) | (parts[1:] != parts[:-1])
    firsts = np.flatnonzero(is_first)
    bounds = offsets_of(np.bincount(parts, minlength=num_parts))
    return _Cut(
        order=order,
        values=values,
        bounds=bounds,
        firsts=firsts,
        numbers=np.cumsum(is_first) - 1,
        first_bounds=np.searchsorted(firsts, bounds),
    )


def _cut_edges(targets: Targets, parts: Ints, num_parts: int) -> _Cut:
    """Flat edges that have a target by its part, in the batch's order; their values: sequences."""
    owners = np.repeat(np.arange(len(targets.edge_lengths)), targets.edge_lengths)
    edges = np.flatnonzero(targets.edge_targets >= 0)
    parts = parts[targets.edge_targets[edges]]
    # numpy sorts integers of 16 bits in linear time.
    order = np.argsort(parts.astype(np.min_scalar_type(num_parts)), kind="stable")
    cut = _cut(order, parts, owners[edges], num_parts=num_parts)
    return replace(cut, order=edges[order])


def _check_rows(targets: Targets, rows: Ints, row_places: Ints, num_parts: int) -> None:
    if rows.ndim != 1 or rows.shape != row_places.shape:
        raise ValueError(
            "rows and row_places must have one entry per packed token, [T], got shapes "
            f"{rows.shape} and {row_places.shape}"
        )
    needed = int(max(targets.packed_indices.max(initial=-1), targets.predictors.max(initial=-1)))
    if needed >= len(rows):
        raise ValueError(
            f"rows must have one entry per packed token of the batch, at least {needed + 1}, got "
            f"{len(rows)}"
        )
    for index in np.flatnonzero((rows < 0) | (rows >= num_parts))[:1].tolist():
        raise ValueError(
            f"rows must be 0 to {num_parts - 1} for {num_parts} parts, got {rows[index]} at packed "
            f"index {index}"
        )
