"""Text and JSON read; every way in which they may be wrong is said with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def load_json(text: bytes | str, source: str) -> Any:
    """Reads JSON.

    An integer of more digits than Python reads is given as its digits, for the field's own check.

    Args:
        text: the text.
        source: file, or file and line; put before the message.

    Returns:
        What JSON gave.

    Raises:
        ValueError: it is no JSON, no UTF-8, or nested too deeply.
    """  # noqa: DOC503 (the others are raised to be caught here)
    try:
        # Left to itself, json would guess UTF-16 and take halves of characters.
        text = text if isinstance(text, str) else text.decode("utf-8-sig")
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            raise
        except ValueError:
            return json.loads(text, parse_int=_parse_int)
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if error.lineno > 1 else ""
        raise ValueError(
            f"{source}: must be JSON, got an error at {line}column {error.colno}: {error.msg}"
        ) from error
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{source}: must be UTF-8, got {error.reason} at byte {error.start}"
        ) from error
    except RecursionError as error:
        raise ValueError(f"{source}: must be nested less deeply to be read as JSON") from error


def read_json(path: Path) -> Any:
    """Reads a file that holds one value.

    Args:
        path: the file.

    Returns:
        What JSON gave.

    Raises:
        ValueError: as `load_json`; the file is named.
    """  # noqa: DOC502 (load_json raises)
    return load_json(path.read_bytes(), str(path))


def read_text(path: Path) -> str:
    """Reads a file of text.

    Args:
        path: the file.

    Returns:
        Its text.

    Raises:
        ValueError: it is no UTF-8; the file is named.
    """
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: must be UTF-8, got {error.reason} at byte {error.start}"
        ) from error


def _parse_int(digits: str) -> int | str:
    """An integer, or the digits of one that Python refuses to read."""
    try:
        return int(digits)
    except ValueError:
        return digits
