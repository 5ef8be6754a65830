"""Sizes of memory as people write them."""

from __future__ import annotations

import re

_UNITS = {"": 1, "B": 1} | {
    prefix + ending: base**power
    for power, prefix in enumerate(("K", "M", "G", "T"), start=1)
    for ending, base in (("iB", 1024), ("B", 1000))
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")
_NAMES = {unit.lower(): factor for unit, factor in _UNITS.items()}


def read_size(option: str, text: str) -> int:
    """Reads a size.

    Args:
        option: name of the option, for the message.
        text: a number and a unit, of 1024 ("80GiB") or of 1000 ("24GB"); without one, bytes.

    Returns:
        Bytes, rounded down.

    Raises:
        ValueError: it is no size, or less than a byte.

    Example:
        >>> read_size("--memory", "1.5GiB"), read_size("--memory", "24 GB")
        (1610612736, 24000000000)
    """
    found = _SIZE.fullmatch(text.strip())
    factor = None if found is None else _NAMES.get(found[2].lower())
    size = 0 if found is None or factor is None else int(float(found[1]) * factor)
    if size < 1:
        raise ValueError(f"{option} must be a size such as 80GiB, 24GB or 512MiB, got {text!r}")
    return size


def say_size(size: int) -> str:
    """Says a size for a person.

    Args:
        size: bytes.

    Returns:
        The size in the largest unit of 1024 that it fills.

    Example:
        >>> say_size(1610612736), say_size(900)
        ('1.50 GiB', '900 B')
    """
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size >= _UNITS[unit]:
            return f"{size / _UNITS[unit]:.2f} {unit}"
    return f"{size} B"
