"""Where the ticks of an axis stand."""

from __future__ import annotations

import math

_FINEST = 1e-12  # of the largest value: ticks closer than that would have one and the same label
_SMALLEST = 1e-300  # below it, powers of ten lose their digits


def find_ticks(low: float, high: float, most: int = 6, *, whole: bool = False) -> list[float]:
    """Choose round numbers between two others.

    Args:
        low: smallest value.
        high: largest value, larger than `low`.
        most: ticks at most.
        whole: whether only whole numbers may be ticks, as where they count steps.

    Returns:
        Multiples of 1, 2 or 5 times a power of ten within the bounds, in order; none where the
        bounds are not finite, or so near each other that floats hardly tell them apart.

    Example:
        >>> find_ticks(0, 950)
        [0.0, 200.0, 400.0, 600.0, 800.0]
    """
    span = high - low
    finest = max(_FINEST * max(abs(low), abs(high)), _SMALLEST)
    if not (math.isfinite(span) and span > finest):
        return []
    rough = max(span / most, 1.0) if whole else span / most
    exponent = math.floor(math.log10(rough))
    power = 10.0**exponent
    factor = next(factor for factor in (1, 2, 5, 10, 20) if factor * power >= rough)
    first = math.ceil(low / (factor * power) - 1e-9)
    last = math.floor(high / (factor * power) + 1e-9)
    scale = (factor * 10**exponent, 1) if exponent >= 0 else (factor, 10**-exponent)
    return [place * scale[0] / scale[1] for place in range(first, last + 1)]
