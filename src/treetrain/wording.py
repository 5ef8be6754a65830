"""How counts are said in what is printed for a person."""

from __future__ import annotations


def say_count(count: int, noun: str) -> str:
    """Say how many there are of something.

    Args:
        count: how many.
        noun: one of it; its plural ends in "s", or in "es" after "ch".

    Returns:
        The number, with separators of thousands, and the noun in the number that goes with it.

    Example:
        >>> say_count(1, "group"), say_count(1200, "branch")
        ('1 group', '1,200 branches')
    """
    ending = "" if count == 1 else "es" if noun.endswith("ch") else "s"
    return f"{count:,} {noun}{ending}"
