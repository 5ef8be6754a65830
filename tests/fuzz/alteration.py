"""Alters values, texts and bytes at random places, as careless writers and broken disks do.

Everything is drawn from the `Random` that is handed over: hypothesis hands one that it can shrink,
the atheris run one made of libFuzzer's seed.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

#: Text that no value of Python is written as; a string of that name is replaced after writing.
RAW = {
    "@deep list@": "[" * 3000 + "]" * 3000,
    "@deep object@": '{"a":' * 3000 + "1" + "}" * 3000,
    "@long integer@": "9" * 5000,
    "@beyond a float@": "1e999",
    "@half a character@": '"\\ud800"',
    "@nul@": '"\\u0000"',
    "@key twice@": '{"a": 1, "a": 2}',
    "@bare word@": "None",
}
STRAY: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, -2, 0.5, 1.0, -0.0, 1e308, float("nan"), float("inf"),
    2**31, 2**63, 2**64, -(2**70), 10**400,
    "", "a", "1", "null", "\u2028", "é", "{}", "[]", '"', "\\", "<|im_end|>", "</think>", "x" * 300,
    [], {}, [[]], [1], [[1], 2], {"a": 1}, [{}], [None], [""], "assistant", "user", "tool",
    *RAW,
)  # fmt: skip
MARKS = (
    "\ufeff".encode(),
    b"\x00",
    b"\xff",
    b"\r\n",
    b"\r",
    b"\n",
    b"\n\n",
    b"\xc3",
    b"\xe2\x80\xa8",
)


def alter_value(value: Any, others: Sequence[Any], random: Random) -> Any:
    """Alters a value of JSON at one place.

    Args:
        value: the value; it stays as it is.
        others: values of which parts and names are borrowed.
        random: what decides.

    Returns:
        The altered copy.
    """
    holder = [copy.deepcopy(value)]
    *above, last = random.choice(list(_places(holder)))
    inside: Any = holder
    for key in above:
        inside = inside[key]
    change = random.choice(_CHANGES)
    change(inside, last, others, random)
    return holder[0] if holder else random.choice(STRAY)


def write_json(value: Any, **arguments: Any) -> str:
    """Writes a value, and what no value is written as.

    Args:
        value: what `alter_value` gave.
        arguments: those of `json.dumps`.

    Returns:
        Text that looks like JSON.
    """
    text = json.dumps(value, **arguments)
    for name, raw in RAW.items():
        text = text.replace(json.dumps(name), raw)
    return text


def alter_bytes(data: bytes, random: Random) -> bytes:
    """Alters bytes at one place, or as a whole.

    Args:
        data: the bytes.
        random: what decides.

    Returns:
        The altered bytes.
    """
    at = random.randint(0, len(data))
    end = min(len(data), at + random.choice((1, 1, 2, 4, 16)))
    drawn = bytes(random.randrange(256) for _ in range(random.randint(1, 4)))
    ways: tuple[Callable[[], bytes], ...] = (
        lambda: data[:at] + drawn + data[end:],
        lambda: data[:at] + random.choice(MARKS) + data[at:],
        lambda: data[:at] + data[end:],
        lambda: data[:at] + data[at:end] * 2 + data[end:],
        lambda: data[:at],
        lambda: data[at:],
        lambda: data + data,
        lambda: data[:at] + bytes(end - at) + data[end:],
        lambda: data.replace(b"\n", b"\r\n"),
        lambda: data.decode("latin-1").encode("utf-16"),
        lambda: "\ufeff".encode() + data,
    )
    return random.choice(ways)()


def _places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if place:
        yield place
    inner = value.items() if isinstance(value, dict) else ()
    inner = enumerate(value) if isinstance(value, list) else inner
    for key, below in inner:
        yield from _places(below, (*place, key))


def _replace(inside: Any, key: Any, others: Sequence[Any], random: Random) -> None:
    inside[key] = copy.deepcopy(random.choice(STRAY))


def _remove(inside: Any, key: Any, others: Sequence[Any], random: Random) -> None:
    del inside[key]


def _repeat(inside: Any, key: Any, others: Sequence[Any], random: Random) -> None:
    if isinstance(inside, list):
        inside.insert(key, copy.deepcopy(inside[key]))
    else:
        inside[random.choice(_names(others))] = copy.deepcopy(inside[key])


def _rename(inside: Any, key: Any, others: Sequence[Any], random: Random) -> None:
    if isinstance(inside, dict):
        inside[random.choice((*_names(others), "", "\u0000", "@half@", "0"))] = inside.pop(key)
    else:
        inside.reverse()


def _borrow(inside: Any, key: Any, others: Sequence[Any], random: Random) -> None:
    found: Any = random.choice(list(others) or [{}])
    for step in random.choice([(), *_places(found)]):
        found = found[step]
    inside[key] = copy.deepcopy(found)


def _wrap(inside: Any, key: Any, others: Sequence[Any], random: Random) -> None:
    value = inside[key]
    ways = ([value], {"a": value}, json.dumps(value), [value, value], [value, None])
    inside[key] = copy.deepcopy(random.choice(ways))


def _retype(inside: Any, key: Any, others: Sequence[Any], random: Random) -> None:
    value = inside[key]
    if isinstance(value, bool) or value is None:
        inside[key] = random.choice((int(bool(value)), str(value)))
    elif isinstance(value, int | float):
        inside[key] = random.choice((value + 1, -value, value + 0.5, str(value), value * 10**12))
    elif isinstance(value, str):
        inside[key] = random.choice((value * 2, value[:-1], value.upper(), list(value)))
    elif isinstance(value, list):
        inside[key] = random.choice((value * 2, value[:-1], dict(enumerate(value)), value[:1]))
    else:
        inside[key] = random.choice((list(value.values()), list(value), list(value.items())))


_CHANGES = (_replace, _replace, _remove, _repeat, _rename, _borrow, _wrap, _retype)


def _names(values: Any) -> list[str]:
    places = (place[-1] for place in _places(list(values)))
    return sorted({one for one in places if isinstance(one, str)}) or ["a"]
