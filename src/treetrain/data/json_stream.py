"""JSON text cut into rows without holding the file: lines, and the elements of one array.

An element's end is found by its brackets and quotes alone; whether it is JSON is told when it is
read, so that one wrong row does not hide those after it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

MARK = b"\xef\xbb\xbf"
CHUNK_BYTES = 1 << 16
SPACE = b" \t\r\n"
#: Endings of files that may hold one object over many lines.
OBJECT_FILES = (".json", ".traj")

_OUTSIDE = re.compile(rb'["\[\]{},]')
_INSIDE = re.compile(rb'["\[\]{}]')
_BACKSLASH = 0x5C


def open_text(file: BinaryIO) -> bytes:
    """Moves to the first character of a text that is no white space.

    Args:
        file: an open file, at its start; a byte order mark is passed over.

    Returns:
        The character, empty where there is none. The file stands behind the mark if the text
        begins otherwise than with "[", or else at the bracket.
    """
    start = len(MARK) if file.read(len(MARK)) == MARK else 0
    file.seek(start)
    place = start
    while chunk := file.read(CHUNK_BYTES):
        rest = chunk.lstrip(SPACE)
        if rest:
            place += len(chunk) - len(rest)
            file.seek(place if rest[:1] == b"[" else start)
            return rest[:1]
        place += len(chunk)
    file.seek(start)
    return b""


def read_lines(file: BinaryIO, path: Path) -> Iterator[tuple[bytes, str]]:
    """Reads JSON lines, or one object that fills the file.

    Args:
        file: an open file, at the start of its text.
        path: its name; an object over several lines is looked for in `.json` and `.traj` only.

    Yields:
        The text of each row and its source, the file's name and the line.
    """
    first = True
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        source = f"{path.name}:{number}"
        if first and path.suffix in OBJECT_FILES and not _is_json(line):
            yield line + file.read(), source
            return
        first = False
        yield line.removesuffix(b"\n"), source


def read_array(file: BinaryIO, path: Path) -> Iterator[tuple[bytes, str]]:
    """Reads the elements of one JSON array.

    Args:
        file: an open file, at the array's opening bracket.
        path: its name.

    Yields:
        The text of each element and its source, the file's name and the index.

    Raises:
        ValueError: the array breaks off, or text follows it.
    """
    file.seek(1, 1)
    buffer = bytearray()
    at = depth = index = 0
    while True:
        found = (_INSIDE if depth else _OUTSIDE).search(buffer, at)
        if found is None:
            at = len(buffer)
            if not _read_more(file, buffer):
                raise ValueError(
                    f"{path.name}[{index}]: an array must end with a bracket, got the end of the "
                    f"file"
                )
            continue
        mark, end, at = found.group(), found.start(), found.end()
        if mark == b'"':
            at = _end_of_string(file, buffer, at)
        elif mark in (b"[", b"{"):
            depth += 1
        elif depth:
            depth -= 1
        elif mark != b"}":
            text = bytes(buffer[:end])
            # Nothing between two brackets is an empty array; anywhere else a row is missing.
            if text.strip(SPACE) or index or mark == b",":
                yield text, f"{path.name}[{index}]"
            if mark == b"]":
                break
            index += 1
            del buffer[:at]
            at = 0
    del buffer[:at]
    while not buffer.strip(SPACE):
        buffer.clear()
        if not _read_more(file, buffer):
            return
    raise ValueError(
        f"{path.name}: must end with its array, got {bytes(buffer.lstrip(SPACE)[:30])!r} after it"
    )


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except json.JSONDecodeError:
        return False
    except (ValueError, RecursionError):
        # Wrong in itself, wherever it ends: `load_json` says how.
        return True
    return True


def _read_more(file: BinaryIO, buffer: bytearray) -> bool:
    chunk = file.read(CHUNK_BYTES)
    buffer += chunk
    return bool(chunk)


def _end_of_string(file: BinaryIO, buffer: bytearray, start: int) -> int:
    """One past the closing quote of a string whose text begins at `start`, or the file's end."""
    at = start
    while True:
        quote = buffer.find(b'"', at)
        if quote < 0:
            at = len(buffer)
            if not _read_more(file, buffer):
                return at
            continue
        slashes = quote
        while slashes > start and buffer[slashes - 1] == _BACKSLASH:
            slashes -= 1
        at = quote + 1
        if (quote - slashes) % 2 == 0:
            return at
