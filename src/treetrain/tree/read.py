"""Reading rows of integers, as callers hold them, into one flat array.

Lists, tuples, arrays and anything that numpy can view as an array are accepted; what is no integer, or is
out of range, is named by its place.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import numpy as np
from numpy.typing import NDArray

from treetrain.tree.ranges import offsets_of

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Kind:
    """What the integers of a row stand for and which are allowed.

    Attributes:
        name: the argument's name, for errors.
        noun: what one entry is, for errors.
        low: smallest entry allowed.
        high: largest entry allowed.
        code: `struct` code of the type that holds them, "i" (int32) or "q" (int64).
        way_out: what to do about an entry that is not allowed, for errors.
    """

    name: str
    noun: str
    low: int
    high: int
    code: str
    way_out: str

    @property
    def dtype(self) -> np.dtype[Any]:
        """numpy type that holds the entries."""
        return np.dtype(self.code)


def token_kind(name: str) -> Kind:
    """Return the kind of token ids: 0 to 2^31 - 1, held as int32.

    Args:
        name: the argument's name, for errors.

    Returns:
        The kind.
    """
    return Kind(name, "token id", 0, 2**31 - 1, "i", "remove padding and ignore marks first")


def key_kind(name: str) -> Kind:
    """Return the kind of side keys: any int64.

    Args:
        name: the argument's name, for errors.

    Returns:
        The kind.
    """
    return Kind(name, "key", -(2**63), 2**63 - 1, "q", "number the distinct keys instead")


def list_rows(rows: object, name: str) -> list[Any]:
    """Return the rows of an argument that holds many.

    Args:
        rows: an iterable of rows, or a two-dimensional array or tensor.
        name: the argument's name, for errors.

    Returns:
        The rows, unread.

    Raises:
        TypeError: `rows` is a string, a mapping, a set, or nothing that can be iterated.
        ValueError: `rows` is an array that is not two-dimensional.
    """
    if hasattr(rows, "__array__") and not isinstance(rows, list | tuple):
        array = _view_array(rows, name)
        if array.dtype != np.object_ and array.ndim != 2:
            raise ValueError(
                f"{name} must be a list of rows or a two-dimensional array, "
                f"got an array of shape {array.shape}; put a single row into a list"
            )
        return list(array)
    if isinstance(rows, str | bytes | dict | set | frozenset) or not isinstance(rows, Iterable):
        raise TypeError(f"{name} must be a list of rows of integers, got {_type_name(rows)}")
    return list(cast("Iterable[Any]", rows))


def read_rows(rows: Sequence[Any], kind: Kind) -> tuple[NDArray[np.integer], Ints]:
    """Read rows of integers into one flat array.

    Args:
        rows: lists, tuples, arrays or tensors of integers, one-dimensional each.
        kind: what the integers are and which are allowed.

    Returns:
        The entries of all rows, [sum of lengths], of `kind.dtype`, and the offsets of the rows, [R + 1],
        int64.

    Raises:
        TypeError: a row is no row, or an entry is no integer (a bool is none); names it.
        ValueError: a row is not one-dimensional, or an entry is out of range; names it.
    """
    arrays: list[NDArray[Any]] = []
    listed: list[int] = []
    for index, row in enumerate(rows):
        if isinstance(row, list | tuple):
            arrays.append(_read_list(cast("Sequence[Any]", row), kind, index))
            listed.append(index)
        else:
            arrays.append(_read_array(row, kind, index))
    offsets = offsets_of(np.fromiter(map(len, arrays), np.int64, len(arrays)))
    if not arrays:
        return np.zeros(0, kind.dtype), offsets
    narrow = all(array.dtype == kind.dtype for array in arrays)
    flat = np.concatenate(arrays, dtype=kind.dtype if narrow else np.int64, casting="same_kind")
    if kind.low > -(2**63) and flat.size:
        # Read as unsigned, a negative entry is larger than every allowed one.
        if flat.view(f"u{flat.itemsize}").max() > kind.high:
            _refuse_range(rows, flat, offsets, kind)
    _refuse_bools(rows, listed, flat, offsets=offsets, kind=kind)
    return flat.astype(kind.dtype, copy=False), offsets


def _read_list(row: Sequence[Any], kind: Kind, index: int) -> NDArray[Any]:
    try:
        # Faster than numpy's own conversion, and it takes no float for an integer.
        return np.frombuffer(struct.pack(f"={len(row)}{kind.code}", *row), kind.dtype)
    except (struct.error, TypeError, ValueError, OverflowError):
        _refuse_list(row, kind, index)


def _read_array(row: object, kind: Kind, index: int) -> NDArray[Any]:
    place = f"{kind.name}[{index}]"
    if isinstance(row, np.ndarray):
        array = cast("NDArray[Any]", row)
    elif hasattr(row, "__array__"):
        array = _view_array(row, place)
    elif isinstance(row, Sequence) and not isinstance(row, str | bytes):
        return _read_list(tuple(cast("Sequence[Any]", row)), kind, index)
    else:
        raise TypeError(f"{place} must be a row of integers, got {_type_name(row)}")
    if array.ndim != 1:
        raise ValueError(f"{place} must be one-dimensional, got shape {array.shape}")
    if not array.size:
        return np.zeros(0, kind.dtype)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{place} must hold integers, got dtype {array.dtype}")
    if array.dtype.kind == "u" and array.dtype.itemsize == 8 and int(array.max()) > kind.high:
        _refuse_list(array.tolist(), kind, index)
    return array


def _view_array(row: object, place: str) -> NDArray[Any]:
    try:
        return np.asarray(row)
    except (TypeError, RuntimeError) as error:
        raise TypeError(
            f"{place} must be readable as a numpy array, got {_type_name(row)}: {error}; "
            "a tensor must hold integers and be on the CPU"
        ) from error


def _refuse_list(row: Sequence[Any], kind: Kind, index: int) -> NoReturn:
    for place, entry in enumerate(row):
        where = f"{kind.name}[{index}][{place}]"
        if isinstance(entry, bool | str | bytes) or not hasattr(entry, "__index__"):
            raise TypeError(f"{where} must be an integer {kind.noun}, got {_type_name(entry)}")
        try:
            value = operator.index(entry)
        except TypeError as error:
            raise TypeError(
                f"{where} must be an integer {kind.noun}, got {_type_name(entry)}"
            ) from error
        if not kind.low <= value <= kind.high:
            raise ValueError(_range_message(where, value, kind))
    raise TypeError(f"{kind.name}[{index}] must be a row of integers, got {_type_name(row)}")


def _refuse_range(rows: Sequence[Any], flat: NDArray[Any], offsets: Ints, kind: Kind) -> NoReturn:
    offender = int(np.flatnonzero((flat < kind.low) | (flat > kind.high))[0])
    row = int(np.searchsorted(offsets, offender, side="right")) - 1
    place = offender - int(offsets[row])
    where = f"{kind.name}[{row}][{place}]"
    raise ValueError(_range_message(where, int(rows[row][place]), kind))


def _refuse_bools(
    rows: Sequence[Any], listed: list[int], flat: NDArray[Any], *, offsets: Ints, kind: Kind
) -> None:
    # A bool reads as 0 or 1, so that only lists with these entries need a look at their types.
    if not listed:
        return
    suspects = np.flatnonzero((flat == 0) | (flat == 1))
    owners = np.searchsorted(offsets, suspects, side="right") - 1
    if len(suspects) > len(flat) // 16:
        candidates = [index for index in listed if bool in set(map(type, rows[index]))]
    else:
        candidates = [
            row
            for row, place in zip(
                owners.tolist(), (suspects - offsets[owners]).tolist(), strict=True
            )
            if type(rows[row][place]) is bool
        ]
    if candidates:
        _refuse_list(rows[candidates[0]], kind, candidates[0])


def _range_message(where: str, value: int, kind: Kind) -> str:
    return (
        f"{where} must be a {kind.noun} between {kind.low} and {kind.high}, got {value}; "
        f"{kind.way_out}"
    )


def _type_name(value: object) -> str:
    return f"{type(value).__name__} {value!r:.60}"
