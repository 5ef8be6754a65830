"""Sequences as plain values that JSON holds: as a tree, or each as a row of token ids.

Nothing a sample holds is left out but, in rows of token ids, its `source`. `tree_rows` reads trees
back, `tokens` rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from treetrain.data.sample import Floats, Ints, Sample

Json = dict[str, Any]

#: What a sample holds beside tokens, weights, keys and names: nothing, a number, or one per token.
VALUES = tuple(
    one.name
    for one in fields(Sample)
    if one.name not in ("tokens", "weights", "keys", "group", "trajectory", "source")
)


class TreeArrays(Protocol):
    """What is read of a prefix tree; `build_prefix_tree` makes them."""

    @property
    def tokens(self) -> Ints:
        """Token ids in packed order, [T]."""
        ...

    @property
    def keys(self) -> Ints | None:
        """Keys in packed order, [T], or None."""
        ...

    @property
    def node_starts(self) -> Ints:
        """Packed index of each node's first token, [N + 1]."""
        ...

    @property
    def parents(self) -> Ints:
        """Parent of each node, [N]; -1 for a root."""
        ...

    @property
    def sequence_nodes(self) -> Ints:
        """Node in which each sequence ends, [S]; -1 for an empty one."""
        ...


def write_tree_row(tree: TreeArrays, samples: Sequence[Sample], indices: Sequence[int]) -> Json:
    """Puts one tree into plain values.

    Args:
        tree: the tree of the samples' tokens and keys, its sequences in their order.
        samples: samples of one group.
        indices: place of each sample among all that are written.

    Returns:
        The object.

    Raises:
        ValueError: a group or trajectory is named by something that JSON does not hold.
    """  # noqa: DOC502 (_check_name raises)
    starts = tree.node_starts.tolist()
    spans = list(pairwise(starts))
    ends = tree.sequence_nodes.tolist()
    row: Json = {
        "group": _check_name("group", samples[0].group, indices[0]),
        "nodes": [tree.tokens[start:end].tolist() for start, end in spans],
        "parents": tree.parents.tolist(),
    }
    if tree.keys is not None:
        row["keys"] = [tree.keys[start:end].tolist() for start, end in spans]
    row["sequences"] = [
        _sequence(sample, index, end)
        for sample, index, end in zip(samples, indices, ends, strict=True)
    ]
    return row


def flat_row(sample: Sample, index: int) -> Json:
    """Puts one sequence into the fields of a row of token ids, which shares nothing.

    Args:
        sample: the sequence.
        index: its place among all that are written.

    Returns:
        The row; it has no field for the sample's `source`.

    Raises:
        ValueError: a group or trajectory is named by something that JSON does not hold.
    """  # noqa: DOC502 (_check_name raises)
    row: Json = {
        "group": _check_name("group", sample.group, index),
        "trajectory_id": _check_name("trajectory", sample.trajectory, index),
        "input_ids": sample.tokens.tolist(),
        "weights": sample.weights.tolist(),
    }
    if sample.keys is not None:
        row["keys"] = sample.keys.tolist()
    named = {name: value for name, value in row.items() if value is not None}
    return {**named, **_value_fields(sample)}


def _value_fields(sample: Sample) -> Json:
    found: Json = {}
    for name in VALUES:
        value = getattr(sample, name)
        if value is not None:
            found[name] = value.tolist() if isinstance(value, np.ndarray) else value
    return found


def _sequence(sample: Sample, index: int, end: int) -> Json:
    found: Json = {"index": index, "end": end, "weights": _runs(sample.weights)}
    if sample.trajectory is not None:
        found["trajectory"] = _check_name("trajectory", sample.trajectory, index)
    if sample.source is not None:
        found["source"] = sample.source
    return {**found, **_value_fields(sample)}


def _check_name(name: str, value: object, index: int) -> str | int | None:
    if value is None or (isinstance(value, str | int) and not isinstance(value, bool)):
        return value
    raise ValueError(
        f"samples[{index}].{name} must be text or an integer to be written, got "
        f"{type(value).__name__} {value!r:.60}"
    )


def _runs(weights: Floats) -> list[tuple[float, int]]:
    # Compared as bits, so that -0.0 comes back as it was.
    starts = np.flatnonzero(np.diff(weights.view(np.int64), prepend=0, append=0) != 0)
    starts = np.unique(np.concatenate([[0], starts, [len(weights)]])).astype(np.int64)
    lengths = np.diff(starts)
    return list(zip(weights[starts[:-1]].tolist(), lengths.tolist(), strict=True))
