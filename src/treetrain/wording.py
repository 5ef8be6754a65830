"""How counts are said in what is printed for a person."""

from __future__ import annotations

import math

_UNITS = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_DURATIONS = ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))


def say_count(count: int, noun: str) -> str:
    """Say how many there are of something.

    Args:
        count: how many.
        noun: one of it; its plural ends in "s", in "es" after "ch", in "ves" for "f".

    Returns:
        The number, with separators of thousands, and the noun in the number that goes with it.

    Example:
        >>> say_count(1, "group"), say_count(1200, "branch")
        ('1 group', '1,200 branches')
    """
    if count != 1:
        stem = noun.removesuffix("f")
        noun = f"{stem}ves" if stem != noun else noun + ("es" if noun.endswith("ch") else "s")
    return f"{count:,} {noun}"


def say_short(value: float) -> str:
    """Write a number in few characters.

    Args:
        value: any number.

    Returns:
        Three digits and a unit: k, M, G, T, P or E.

    Example:
        >>> say_short(12345), say_short(0.25), say_short(7)
        ('12.3k', '0.25', '7')
    """
    if not math.isfinite(value):
        return str(value)
    for size, unit in _UNITS:
        if abs(value) >= size * 0.9995:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def say_duration(seconds: float) -> str:
    """Say how long something takes, in two units at most.

    Args:
        seconds: how long.

    Returns:
        Whole seconds, minutes, hours and days; milliseconds below one second.

    Example:
        >>> say_duration(0.25), say_duration(59.7), say_duration(3700), say_duration(200_000)
        ('250 ms', '1 min 0 s', '1 h 1 min', '2 d 7 h')
    """
    milliseconds = round(1000 * seconds)
    if 0 < milliseconds < 1000:
        return f"{milliseconds} ms"
    whole = round(seconds)
    for size, unit, small, part in _DURATIONS:
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // small} {part}"
    return f"{whole} s"
