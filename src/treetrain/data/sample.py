"""One sequence with what is trained in it, checked once where it enters the library.

This file holds the type; `rows` reads samples from files, `chat` renders conversations.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

MAX_TOKEN_ID = 2**31 - 1
_INT64 = np.iinfo(np.int64)
_WAYS_OUT = {
    "tokens": "mark padding with attention_mask",
    "keys": "number the distinct keys instead",
}


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Sample:
    """One sequence: its tokens and the weight of each token as a target.

    The first token of a sequence has no predecessor, so it is never a target and its weight is not
    used. A mask of what is trained is a weight of 0 or 1. Padding is removed here, wherever it
    stands and by the mask alone: no id is ever taken for padding.

    Args:
        tokens: token ids, [L]; list, array or tensor of integers in 0 .. 2^31 - 1.
        weights: weight of each token as a target, [L], or a mask of booleans or 0 and 1; None: all
            are 1.
        attention_mask: 1 or True for real tokens, 0 or False for padding, [L]; padded places are
            removed from everything that has one entry per token.
        keys: second integer of each token, [L].
        group: name of the tree the sequence belongs to.
        trajectory: name of the trajectory the sequence is a part of.
        advantage: a number, or one for each token as a target, [L].
        logprobs: log-probability of each token when it was sampled, [L], nats.
        reward: a number, or one for each token, [L].
        source: file and line of the sequence, put before every error message.

    Raises:
        ValueError: an argument has the wrong rank, length or value; the first index is named.
        TypeError: an entry is no number of the right type, an array is masked or has no values to
            read, or a name is not hashable.

    Attributes:
        tokens: token ids, [L] int64; padded places are already gone.
        weights: weight of each token's -log p when it is the target, [L] float64.
        keys: second integer of each token that must also be equal for tokens of two sequences to
            share a node, [L] int64, or None.
        group: sequences of one group make one tree; those of group None are one group too.
        trajectory: what `trajectory_mean` counts as one; None: the sequence is its own trajectory.
        advantage: one number for the whole sequence, or one per token as a target, [L] float64, or
            None.
        logprobs: log-probability of each token under the policy that sampled it, [L] float64, nats,
            or None; entries of tokens that are not trained are not read.
        reward: one number for the whole sequence, or one per token, [L] float64, or None. No loss
            reads it; advantages are made of it.
        source: where the sequence was read, for messages ("data.jsonl:17"), or None.

    Example:
        >>> sample = Sample([5, 6, 7, 0], [0, 1, 1, 0], attention_mask=[1, 1, 1, 0])
        >>> sample.tokens.tolist(), sample.weights.tolist()
        ([5, 6, 7], [0.0, 1.0, 1.0])
    """

    tokens: Ints
    weights: Floats
    keys: Ints | None
    group: Hashable | None
    trajectory: Hashable | None
    advantage: float | Floats | None
    logprobs: Floats | None
    reward: float | Floats | None
    source: str | None

    def __init__(
        self,
        tokens: ArrayLike,
        weights: ArrayLike | None = None,
        *,
        attention_mask: ArrayLike | None = None,
        keys: ArrayLike | None = None,
        group: Hashable | None = None,
        trajectory: Hashable | None = None,
        advantage: ArrayLike | None = None,
        logprobs: ArrayLike | None = None,
        reward: ArrayLike | None = None,
        source: str | None = None,
    ) -> None:
        for name, value in (("group", group), ("trajectory", trajectory)):
            try:
                hash(value)
            except TypeError as error:
                raise TypeError(
                    f"{_at(source)}{name} must be hashable, a string or a number, got "
                    f"{type(value).__name__} {value!r:.60}"
                ) from error
        ids = _array("tokens", tokens, source)
        columns = {
            "attention_mask": attention_mask,
            "weights": weights,
            "keys": keys,
            "logprobs": logprobs,
        }
        arrays = {
            name: _array(name, value, source)
            for name, value in columns.items()
            if value is not None
        }
        numbers: dict[str, float] = {}
        for name, value in (("advantage", advantage), ("reward", reward)):
            if value is not None:
                array = _to_numpy(name, value, source)
                if array.ndim == 0:
                    numbers[name] = float(_finite(name, array.reshape(1), source)[0])
                else:
                    arrays[name] = _array(name, array, source)
        for name, array in arrays.items():
            if len(array) != len(ids):
                raise ValueError(
                    f"{_at(source)}{name} must have one entry per token, got {len(array)} entries "
                    f"for {len(ids)} tokens"
                )
        kept = _kept_places(arrays.pop("attention_mask", None), source)
        if kept is not None:
            ids = ids[kept]
            arrays = {name: array[kept] for name, array in arrays.items()}
        ids = _integers("tokens", ids, source, low=0, high=MAX_TOKEN_ID)
        trained = arrays.get("weights")
        side = arrays.get("keys")
        per_token = {
            name: _finite(name, arrays[name], source)
            for name in ("advantage", "logprobs", "reward")
            if name in arrays
        }
        values: dict[str, Any] = {
            "tokens": ids,
            "weights": np.ones(len(ids))
            if trained is None
            else _finite("weights", trained, source),
            "keys": (
                None
                if side is None
                else _integers("keys", side, source, low=_INT64.min, high=_INT64.max)
            ),
            "group": group,
            "trajectory": trajectory,
            "advantage": numbers.get("advantage", per_token.get("advantage")),
            "logprobs": per_token.get("logprobs"),
            "reward": numbers.get("reward", per_token.get("reward")),
            "source": source,
        }
        for name, value in values.items():
            if isinstance(value, np.ndarray):
                value.flags.writeable = False
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        """Number of tokens L."""
        return len(self.tokens)

    def __repr__(self) -> str:
        trained = int(np.count_nonzero(self.weights[1:]))
        place = f", source={self.source!r}" if self.source else ""
        return f"Sample({len(self)} tokens, {trained} trained, group={self.group!r}{place})"


def shared_keys(samples: Sequence[Sample], places: Sequence[int]) -> list[Ints] | None:
    """Takes the keys of the sequences of one group.

    Args:
        samples: all samples.
        places: indices of the group's samples.

    Returns:
        Their keys, or None where none of them has any.

    Raises:
        ValueError: some have keys and others have none; the first without is named.
    """
    found = [keys for place in places if (keys := samples[place].keys) is not None]
    if not found:
        return None
    if len(found) == len(places):
        return found
    missing = next(place for place in places if samples[place].keys is None)
    raise ValueError(
        f"{_at(samples[missing].source)}samples of one group must all have keys or none, got none "
        f"for samples[{missing}] of group {samples[missing].group!r}; give it keys of 0 or a group "
        f"of its own"
    )


def _at(source: str | None) -> str:
    return f"{source}: " if source else ""


def _to_numpy(name: str, value: Any, source: str | None) -> NDArray[Any]:
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(
            f"{_at(source)}{name} must be no masked array, whose mask would be lost; give its "
            "values, .data, and say what it hides with attention_mask (padding) or weights (not "
            "trained)"
        )
    if hasattr(value, "detach"):
        try:
            value = value.detach().cpu()
            # numpy has no bfloat16; float64 holds every narrower float exactly.
            value = value.double().numpy() if value.is_floating_point() else value.numpy()
        except (RuntimeError, TypeError) as error:
            raise TypeError(
                f"{_at(source)}{name} must be a dense tensor with values, got one that numpy "
                f"cannot read: {error}"
            ) from error
    try:
        return np.asarray(value)
    except ValueError as error:
        raise ValueError(
            f"{_at(source)}{name} must be one-dimensional, got nested lists of unequal lengths"
        ) from error


def _array(name: str, value: Any, source: str | None) -> NDArray[Any]:
    array = _to_numpy(name, value, source)
    if name in _WAYS_OUT and array.dtype.kind == "f" and not hasattr(value, "dtype"):
        # numpy makes floats of a list of integers some of which pass int64.
        array = np.asarray(value, dtype=object)
    if array.ndim != 1:
        raise ValueError(
            f"{_at(source)}{name} must be one-dimensional, got shape {array.shape}; make one "
            f"Sample per sequence"
        )
    # A bool in a list of integers reads as 0 or 1.
    if name in _WAYS_OUT and not hasattr(value, "dtype") and bool in set(map(type, value)):
        index = list(map(type, value)).index(bool)
        raise TypeError(
            f"{_at(source)}{name} must be integers, got bool {value[index]} at index {index}"
        )
    return array


def _integers(name: str, array: NDArray[Any], source: str | None, *, low: int, high: int) -> Ints:
    if len(array) and array.dtype.kind not in "iuO":
        raise TypeError(f"{_at(source)}{name} must be integers, got {array.dtype}")
    if array.dtype.kind == "O":
        for index, entry in enumerate(array.tolist()):
            if isinstance(entry, bool) or not isinstance(entry, int | np.integer):
                raise TypeError(
                    f"{_at(source)}{name} must be integers, got {type(entry).__name__} {entry!r} "
                    f"at index {index}"
                )
    # Compared before int64 could turn a large one negative.
    wrong = np.flatnonzero((array < low) | (array > high))
    if len(wrong):
        raise ValueError(
            f"{_at(source)}{name} must be in {low} .. {high}, got {array[wrong[0]]} at index "
            f"{wrong[0]} (after padding was removed); {_WAYS_OUT[name]}"
        )
    # A copy, because the sample is frozen and the caller's array must stay writable.
    return np.array(array, dtype=np.int64)


def _finite(name: str, array: NDArray[Any], source: str | None) -> Floats:
    # A mask is a weight; a bool is no advantage.
    if len(array) and array.dtype.kind not in ("biuf" if name == "weights" else "iuf"):
        raise TypeError(f"{_at(source)}{name} must be numbers, got {array.dtype}")
    numbers = np.array(array, dtype=np.float64)
    wrong = np.flatnonzero(~np.isfinite(numbers))
    if len(wrong):
        raise ValueError(
            f"{_at(source)}{name} must be finite, got {numbers[wrong[0]]} at index {wrong[0]}; use "
            f"0 for what is not trained"
        )
    return numbers


def _kept_places(mask: NDArray[Any] | None, source: str | None) -> Ints | None:
    if mask is None:
        return None
    if len(mask) and mask.dtype.kind not in "biuf":
        raise TypeError(
            f"{_at(source)}attention_mask must be booleans or 0 and 1, got {mask.dtype}"
        )
    wrong = np.flatnonzero((mask != 0) & (mask != 1))
    if len(wrong):
        raise ValueError(
            f"{_at(source)}attention_mask must be booleans or 0 and 1, got {mask[wrong[0]]} at "
            f"index {wrong[0]}"
        )
    return np.flatnonzero(mask)
