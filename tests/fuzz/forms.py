"""How the bytes of a file are taken apart into values and put together, so that one is altered."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import yaml
from tests.fuzz.alteration import alter_bytes, alter_value, write_json

#: Largest file that is altered further.
LARGEST = 1 << 15


@dataclass(frozen=True)
class Form:
    """A way to write values.

    Attributes:
        read: bytes to the values in them; it may fail in any way where there are none.
        write: values to bytes.
    """

    read: Callable[[bytes], list[Any]]
    write: Callable[[list[Any], Random], bytes]


def alter(data: bytes, form: Form | None, random: Random, *, others: Sequence[Any] = ()) -> bytes:
    """Alters a file once or a few times: a value in it where it still has some, or its bytes.

    Args:
        data: the file.
        form: how it is written; None: only its bytes are altered.
        random: what decides.
        others: values of which parts and names are borrowed.

    Returns:
        The altered file.
    """
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        altered = None
        if form is not None and random.random() < 0.75:
            altered = _alter_within(data, form, random, others)
        data = alter_bytes(data, random) if altered is None else altered
    return data[:LARGEST]


def _alter_within(data: bytes, form: Form, random: Random, others: Sequence[Any]) -> bytes | None:
    try:
        values = form.read(data)
        if not values:
            return None
        place = random.randrange(len(values))
        altered = alter_value(values[place], others, random)
        way = random.randrange(8)
        if way == 0:
            values.insert(place, altered)
        elif way == 1:
            values[place : place + 1] = random.choice(([], [others[0]] if others else []))
        else:
            values[place] = altered
        return form.write(values, random)
    # What was altered before may be no such file any more; then its bytes are.
    except (ValueError, TypeError, LookupError, RecursionError, OverflowError, yaml.YAMLError):
        return None


def _read_lines(data: bytes) -> list[Any]:
    return [json.loads(line) for line in data.splitlines() if line.strip()]


def _write_lines(values: list[Any], random: Random) -> bytes:
    end = random.choice(("\n", "\n", "\n", "\r\n", "\n\n"))
    ascii_only = random.random() < 0.5
    text = end.join(write_json(value, ensure_ascii=ascii_only) for value in values)
    return (text + random.choice((end, ""))).encode(errors="surrogatepass")


def _read_array(data: bytes) -> list[Any]:
    found = json.loads(data)
    return found if isinstance(found, list) else [found]


def _write_array(values: list[Any], random: Random) -> bytes:
    text = write_json(values, indent=random.choice((None, 1)))
    return text.encode(errors="surrogatepass")


def _write_one(values: list[Any], random: Random) -> bytes:
    text = write_json(values[0] if values else None, indent=random.choice((None, 1)))
    return text.encode(errors="surrogatepass")


def _write_yaml(values: list[Any], random: Random) -> bytes:
    # JSON is YAML, and holds what `safe_dump` would refuse.
    if random.random() < 0.5:
        return _write_one(values, random)
    return yaml.safe_dump(values[0], allow_unicode=True).encode(errors="surrogatepass")


LINES = Form(_read_lines, _write_lines)
ARRAY = Form(_read_array, _write_array)
OBJECT = Form(lambda data: [json.loads(data)], _write_one)
YAML = Form(lambda data: [yaml.safe_load(data)], _write_yaml)
