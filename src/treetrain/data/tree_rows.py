"""A stored tree: one prefix tree with its sequences as one JSON object.

Every token stands once, in its node; a sequence is the node it ends in, with what belongs to it
alone. `written_rows` makes such objects, `tree_file` files of them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated, Any, cast

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from treetrain.data.fields import Integer, Name, as_object, field_error, validate
from treetrain.data.sample import MAX_TOKEN_ID, Floats, Ints, Sample
from treetrain.data.written_rows import VALUES

Token = Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]
Count = Annotated[int, Field(ge=1)]
#: Equal weights in a row, and how many; JSON writes the pair as a list.
Run = Annotated[tuple[float, Count], Field(strict=False)]
Index = Annotated[int, Field(ge=0)]


#: Values that are never one number for all of a sequence.
PER_TOKEN = ("logprobs",)


class _Sequence(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")
    index: Index
    end: Annotated[int, Field(ge=-1)]
    weights: list[Run]
    trajectory: Name = None
    source: str | None = None


class StoredTree(BaseModel):
    """A tree as it stands in a file.

    Attributes:
        group: the sequences' group.
        nodes: token ids of each node.
        parents: node that each hangs from, one that stands before it; -1 for a root.
        keys: keys of each node's tokens, or None.
        sequences: the node in which each ends, its place among all of the file, runs of equal
            weights as (weight, tokens), and the values of `VALUES` that it has.
    """

    model_config = ConfigDict(strict=True, extra="forbid")
    group: Name
    nodes: list[Annotated[list[Token], Field(min_length=1)]]
    parents: list[Annotated[int, Field(ge=-1)]]
    keys: list[list[Integer]] | None = None
    sequences: Annotated[list[_Sequence], Field(min_length=1)]


def read_tree_row(row: Any, source: str) -> Iterator[tuple[int, Sample]]:
    """Makes the sequences of one tree.

    Args:
        row: what JSON gave.
        source: file and line.

    Yields:
        Each sequence with its place among all of the file.

    Raises:
        ValueError: a field is missing, unknown or wrong; it is named.
    """  # noqa: DOC502, DOC503 (field_error makes the errors)
    tree = validate(StoredTree, as_object(row, source), source)
    nodes = [np.array(tokens, dtype=np.int64) for tokens in tree.nodes]
    _check_nodes(tree, source)
    keys = None
    if tree.keys is not None:
        keys = [np.array(own, dtype=np.int64) for own in tree.keys]
    for number, one in enumerate(tree.sequences):
        place = f"sequences[{number}]"
        if one.end >= len(nodes):
            raise field_error(
                source, f"{place}.end", f"must be one of {len(nodes)} nodes or -1, got {one.end}"
            )
        path = _path_to(tree.parents, one.end)
        tokens = _join(nodes, path)
        yield (
            one.index,
            Sample(
                tokens,
                _weights(one, len(tokens), source, place),
                keys=None if keys is None else _join(keys, path),
                group=tree.group,
                trajectory=one.trajectory,
                source=one.source,
                **_values(one, len(tokens), source, place),
            ),
        )


def _check_nodes(tree: StoredTree, source: str) -> None:
    if len(tree.parents) != len(tree.nodes):
        raise field_error(
            source, "parents", f"has {len(tree.parents)} entries for {len(tree.nodes)} nodes"
        )
    for node, parent in enumerate(tree.parents):
        if parent >= node:
            raise field_error(
                source, f"parents[{node}]", f"must be a node before it or -1, got {parent}"
            )
    if tree.keys is None:
        return
    if len(tree.keys) != len(tree.nodes):
        raise field_error(
            source, "keys", f"has {len(tree.keys)} entries for {len(tree.nodes)} nodes"
        )
    for node, (keys, tokens) in enumerate(zip(tree.keys, tree.nodes, strict=True)):
        if len(keys) != len(tokens):
            raise field_error(
                source, f"keys[{node}]", f"has {len(keys)} entries for {len(tokens)} tokens"
            )


def _path_to(parents: list[int], node: int) -> list[int]:
    path: list[int] = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


def _join(pieces: list[Ints], path: list[int]) -> Ints:
    return np.concatenate([np.empty(0, np.int64), *(pieces[node] for node in path)])


def _weights(one: _Sequence, length: int, source: str, place: str) -> Floats:
    values = np.array([weight for weight, _ in one.weights], dtype=np.float64)
    counts = [count for _, count in one.weights]
    if sum(counts) != length:
        raise field_error(
            source, f"{place}.weights", f"has runs of {sum(counts)} entries for {length} tokens"
        )
    wrong = np.flatnonzero(~np.isfinite(values))
    if len(wrong):
        raise field_error(
            source, f"{place}.weights[{wrong[0]}]", f"must be finite, got {values[wrong[0]]}"
        )
    return np.repeat(values, np.array(counts, dtype=np.int64))


def _values(one: _Sequence, length: int, source: str, place: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in (one.model_extra or {}).items():
        field = f"{place}.{name}"
        if name not in VALUES:
            raise field_error(source, field, f"is unknown; known are {', '.join(VALUES)}")
        if name in PER_TOKEN and not isinstance(value, list):
            raise field_error(source, field, f"must be one number per token, got {value!r:.60}")
        numbers: list[Any] = cast(list[Any], value) if isinstance(value, list) else [value]
        for number in numbers:
            if isinstance(number, bool) or not isinstance(number, int | float):
                raise field_error(
                    source, field, f"must be a number, or one per token, got {number!r:.60}"
                )
            if not abs(number) <= sys.float_info.max:
                raise field_error(source, field, f"must be finite, got {number!r:.60}")
        if isinstance(value, list) and len(numbers) != length:
            raise field_error(source, field, f"has {len(numbers)} entries for {length} tokens")
        found[name] = np.array(numbers, np.float64) if isinstance(value, list) else float(value)
    return found
