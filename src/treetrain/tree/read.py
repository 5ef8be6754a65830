"""Reading rows of integers, as callers hold them, into one flat array.

Lists, tuples, arrays and anything that numpy can view as an array are accepted; what is no integer
or is out of range is named by its place.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import chain
from typing import Any, NoReturn, cast

import numpy as np
from numpy.typing import NDArray

from treetrain.tree.kinds import Kind, key_kind
from treetrain.tree.ranges import Ints, offsets_of

_ENTRIES_AT_ONCE = 1 << 14


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
    if hasattr(rows, "__array__"):
        array = _view_array(rows, name)
        if array.ndim != 2 and (array.ndim != 1 or array.dtype != np.object_):
            raise ValueError(
                f"{name} must be a list of rows or a two-dimensional array, "
                f"got an array of shape {array.shape}; put a single row into a list"
            )
        return list(array)
    if isinstance(rows, str | bytes | Mapping | Set) or not isinstance(rows, Iterable):
        raise TypeError(
            f"{name} must be a list of rows of integers, got {_name_value(cast('object', rows))}"
        )
    return list(cast("Iterable[Any]", rows))


def read_rows(rows: Sequence[Any], kind: Kind) -> tuple[NDArray[Any], Ints]:
    """Read rows of integers into one flat array.

    Args:
        rows: lists, tuples, arrays or tensors of integers, one-dimensional each. An array without
            entries may be of any dtype.
        kind: what the integers are and which are allowed.

    Returns:
        The entries of all rows, [sum of lengths], of `kind.dtype`, and the offsets of the rows,
        [R + 1], int64.

    Raises:
        TypeError: a row is no row, or an entry is no integer (a bool is none); names it.
        ValueError: a row is not one-dimensional, or an entry is out of range; names it.
    """  # noqa: DOC502 (the functions below raise)
    if set(map(type, rows)) <= {list, tuple}:
        offsets = offsets_of(np.fromiter(map(len, rows), np.int64, len(rows)))
        flat = _pack_lists(rows, kind, offsets)
    else:
        # What needs no second look is not looked at twice: there may be many short rows.
        arrays: list[NDArray[Any]] = [
            row if type(row) is np.ndarray and _is_plain(row) else _read_row(row, kind, index)
            for index, row in enumerate(rows)
        ]
        offsets = offsets_of(np.fromiter(map(len, arrays), np.int64, len(arrays)))
        flat = _join(arrays, kind)
    if flat.size and (flat.min() < kind.low or flat.max() > kind.high):
        offender = int(np.flatnonzero((flat < kind.low) | (flat > kind.high))[0])
        row = int(np.searchsorted(offsets, offender, side="right")) - 1
        _refuse_entry(rows[row], kind, row)
    _refuse_bools(rows, flat, offsets, kind=kind)
    return flat.astype(kind.dtype, copy=False), offsets


def read_row(row: object, kind: Kind) -> Ints:
    """Read one row of integers.

    Args:
        row: a list, tuple, array or tensor of integers, one-dimensional.
        kind: what the integers are and which are allowed.

    Returns:
        The entries, [n], int64.

    Raises:
        TypeError: it is no row, or an entry is no integer; names it.
        ValueError: it is not one-dimensional, or an entry is out of range; names it.
    """  # noqa: DOC502 (the functions below raise)
    values = _read_row(row, kind, None).astype(np.int64)
    if values.size and (values.min() < kind.low or values.max() > kind.high):
        _refuse_entry(row, kind, None)
    if _has_bools(row):
        _refuse_entry(row, kind, None)
    return values


def read_keys(keys: object, offsets: Ints, *, beside: str) -> Ints:
    """Read the side keys of rows that were read before.

    Args:
        keys: one row of keys for each row of tokens.
        offsets: offsets of the rows of tokens, [R + 1].
        beside: name of the argument that held the tokens, for errors.

    Returns:
        The keys of all rows, [sum of lengths], int64.

    Raises:
        ValueError: the keys have not the shape of the tokens; names the first row.
    """
    rows = list_rows(keys, "keys")
    if len(rows) != len(offsets) - 1:
        raise ValueError(
            f"keys must have one row for each of the {len(offsets) - 1} rows of {beside}, "
            f"got {len(rows)}"
        )
    flat, key_offsets = read_rows(rows, key_kind("keys"))
    counts, wanted = np.diff(key_offsets), np.diff(offsets)
    differing = np.flatnonzero(counts != wanted)
    if len(differing):
        row = int(differing[0])
        raise ValueError(
            f"keys[{row}] must have one key for each of the {wanted[row]} tokens of "
            f"{beside}[{row}], got {counts[row]}"
        )
    return flat


def _pack_lists(rows: Sequence[Any], kind: Kind, offsets: Ints) -> NDArray[Any]:
    # Faster than numpy's own conversion, and it takes no float for an integer. Short rows are
    # packed many at a time.
    flat = np.empty(offsets[-1], kind.dtype)
    first = 0
    while first < len(rows):
        place = int(offsets[first])
        fitting = int(np.searchsorted(offsets, place + _ENTRIES_AT_ONCE, side="right")) - 1
        end = max(first + 1, fitting)
        entries = rows[first] if end == first + 1 else chain.from_iterable(rows[first:end])
        code = f"={int(offsets[end]) - place}{kind.code}"
        try:
            struct.pack_into(code, flat.data, place * flat.itemsize, *entries)
        except (struct.error, TypeError, ValueError, OverflowError):
            for index in range(first, end):
                _read_row(rows[index], kind, index)
            raise
        first = end
    return flat


def _is_plain(row: NDArray[Any]) -> bool:
    return row.ndim == 1 and row.dtype.char in "bhilqBHI"


def _read_row(row: object, kind: Kind, index: int | None) -> NDArray[Any]:
    if hasattr(row, "__array__"):
        return _read_array(row, kind, index)
    if not isinstance(row, Sequence) or isinstance(row, str | bytes | bytearray):
        raise TypeError(f"{_place(kind, index)} must be a row of integers, got {_name_value(row)}")
    entries = cast("Sequence[Any]", row)
    try:
        return np.frombuffer(struct.pack(f"={len(entries)}{kind.code}", *entries), kind.dtype)
    except (struct.error, TypeError, ValueError, OverflowError):
        _refuse_entry(row, kind, index)


def _read_array(row: object, kind: Kind, index: int | None) -> NDArray[Any]:
    place = _place(kind, index)
    array = _view_array(row, place)
    if array.ndim != 1:
        raise ValueError(f"{place} must be one-dimensional, got shape {array.shape}")
    if not array.size:
        return np.zeros(0, kind.dtype)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{place} must hold integers, got dtype {array.dtype}")
    if array.dtype == np.uint64 and int(array.max()) > kind.high:
        _refuse_entry(array, kind, index)  # joined with other rows it could turn negative
    return array


def _join(arrays: list[NDArray[Any]], kind: Kind) -> NDArray[Any]:
    if not arrays:
        return np.zeros(0, kind.dtype)
    narrow = all(array.dtype == kind.dtype for array in arrays)
    dtype = kind.dtype if narrow else np.dtype(np.int64)
    return np.concatenate(arrays, dtype=dtype, casting="same_kind")


def _view_array(row: object, place: str) -> NDArray[Any]:
    if isinstance(row, np.ma.MaskedArray):
        raise TypeError(
            f"{place} must be no masked array, whose mask would be lost; leave hidden entries out"
        )
    if isinstance(row, np.ndarray):
        return cast("NDArray[Any]", row)
    try:
        return np.asarray(row)
    except (TypeError, RuntimeError) as error:
        raise TypeError(
            f"{place} must be readable as a numpy array, got {_name_value(row)}: {error}; "
            "a tensor must hold integers and be on the CPU"
        ) from error


def _refuse_bools(rows: Sequence[Any], flat: NDArray[Any], offsets: Ints, *, kind: Kind) -> None:
    if all(type(row) is np.ndarray for row in rows):
        return
    # A bool in a list reads as 0 or 1: only rows with such entries need a look at their types.
    suspects = np.flatnonzero((flat == 0) | (flat == 1))
    owners = np.searchsorted(offsets, suspects, side="right") - 1
    for row in owners[np.diff(owners, prepend=-1) > 0].tolist():
        if _has_bools(rows[row]):
            _refuse_entry(rows[row], kind, row)


def _has_bools(row: Any) -> bool:
    return not hasattr(row, "__array__") and bool in set(map(type, row))


def _refuse_entry(row: Any, kind: Kind, index: int | None) -> NoReturn:
    for number, entry in enumerate(row):
        where = f"{_place(kind, index)}[{number}]"
        try:
            value = operator.index(entry)
        except TypeError:
            value = None
        if value is None or isinstance(entry, bool):
            raise TypeError(f"{where} must be an integer {kind.noun}, got {_name_value(entry)}")
        if not kind.low <= value <= kind.high:
            raise ValueError(
                f"{where} must be a {kind.noun} between {kind.low} and {kind.high}, got {value}; "
                f"{kind.way_out}"
            )
    raise AssertionError(f"{_place(kind, index)} was refused without an offending entry")


def _place(kind: Kind, index: int | None) -> str:
    return kind.name if index is None else f"{kind.name}[{index}]"


def _name_value(value: object) -> str:
    return f"{type(value).__name__} {value!r:.60}"
