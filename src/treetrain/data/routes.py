"""Executed expert routes as keys, so that tokens that other experts computed do not merge.

Where training replays the experts that computed a token when it was sampled, equal tokens with
equal prefixes are the same only if their routes are. What replays them is the model's affair.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from treetrain.data.sample import Ints


def number_routes(
    routes: Sequence[ArrayLike], *, keys: Sequence[ArrayLike] | None = None
) -> list[Ints]:
    """Number the distinct routes of all tokens, for `Sample(keys=...)`.

    A route is the set of experts of each layer; their order says nothing. Distinct routes get
    distinct numbers, with no chance of a collision, in one call only: number all sequences that may
    share a tree together.

    Args:
        routes: for each sequence the experts that computed its tokens, [L, layers, k] integers;
            list, array or tensor.
        keys: for each sequence another integer per token that must be equal too, [L], or None.

    Returns:
        One key per token of each sequence, [L] int64, from 0.

    Raises:
        TypeError: routes or keys are no integers.
        ValueError: there is no sequence, or one has another rank, other layers or experts per token
            than the first, or not one key per token; names it.

    Example:
        >>> first, second = number_routes([[[[0, 1]], [[2, 3]]], [[[1, 0]], [[2, 1]]]])
        >>> first.tolist(), second.tolist()  # the second tokens went to other experts
        ([0, 2], [0, 1])
    """  # noqa: DOC503 (reading the rows raises too)
    rows = [_read(f"routes[{index}]", row, rank=3) for index, row in enumerate(routes)]
    if not rows:
        raise ValueError("routes must hold at least one sequence, got none")
    shapes = [row.shape[1:] for row in rows if row.size]
    for index, row in enumerate(rows):
        if row.size and row.shape[1:] != shapes[0]:
            raise ValueError(
                f"routes[{index}] must have {shapes[0][0]} layers of {shapes[0][1]} experts for "
                f"each token like the others, got {row.shape[1]} of {row.shape[2]}"
            )
    if not shapes:
        return [np.zeros(0, np.int64) for _ in rows]
    sets = np.sort(np.concatenate([row.reshape(-1, *shapes[0]) for row in rows]), axis=-1)
    columns: list[Ints] = [sets.reshape(len(sets), -1)]
    if keys is not None:
        sides = [_read(f"keys[{index}]", row, rank=1) for index, row in enumerate(keys)]
        lengths = [len(row) for row in rows]
        if [len(side) for side in sides] != lengths:
            raise ValueError(
                f"keys must have one entry per token, got {[len(side) for side in sides]} entries "
                f"for {lengths} tokens"
            )
        columns.append(np.concatenate(sides)[:, None])
    numbers = _number_rows(np.concatenate(columns, axis=1))
    return np.split(numbers, np.cumsum([len(row) for row in rows])[:-1])


def _number_rows(rows: Ints) -> Ints:
    """Number the distinct rows in the order of their bytes."""
    # Narrow, since routes of many layers are long.
    small = np.iinfo(np.int16)
    fits = rows.min() >= small.min and rows.max() <= small.max
    words = np.ascontiguousarray(rows, np.int16 if fits else np.int64)
    order = np.argsort(words.view(np.dtype((np.void, words.itemsize * words.shape[1])))[:, 0])
    ordered = words[order]
    numbers = np.zeros(len(rows), np.int64)
    numbers[order[1:]] = np.cumsum((ordered[1:] != ordered[:-1]).any(axis=1))
    return numbers


def _read(name: str, value: Any, *, rank: int) -> Ints:
    array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    if array.ndim and not len(array):
        return np.zeros([0] * rank, np.int64)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} must be integers, got {array.dtype}")
    if array.ndim != rank or not array.size:
        said = "[tokens, layers, k]" if rank == 3 else "[tokens]"
        raise ValueError(f"{name} must have shape {said}, got shape {array.shape}")
    return array.astype(np.int64)
