"""Where the ticks of an axis stand."""

from __future__ import annotations

import math


def find_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Choose round numbers between two others.

    Args:
        low: smallest value.
        high: largest value, larger than `low`.
        most: ticks at most.

    Returns:
        Multiples of 1, 2 or 5 times a power of ten within the bounds, in order.

    Example:
        >>> find_ticks(0, 950)
        [0.0, 200.0, 400.0, 600.0, 800.0]
    """
    span = high - low
    if not (math.isfinite(span) and span > 0):
        return []
    rough = span / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10, 20) if factor * power >= rough)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(place * step, 12) for place in range(first, last + 1)]
