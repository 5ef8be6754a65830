"""What a partition does with its activations while its descendants run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from treetrain.errors import check_type

Mode = Literal["keep", "recompute", "offload"]


def check_modes(modes: Sequence[str] | str, count: int) -> list[Mode]:
    """Read the modes of partitions.

    Args:
        modes: one for all, or one per partition.
        count: number of partitions.

    Returns:
        One per partition.

    Raises:
        ValueError: one is unknown, or there is not one per partition.

    Example:
        >>> check_modes("keep", 2)
        ['keep', 'keep']
    """
    check_type("modes", modes, (str, Sequence), "a mode or one per partition")
    named = [modes] * count if isinstance(modes, str) else list(modes)
    if len(named) != count:
        raise ValueError(f"modes must have one entry per partition, {count}, got {len(named)}")
    known: dict[str, Mode] = {mode: mode for mode in get_args(Mode)}
    for part, name in enumerate(named):
        if name not in known:
            raise ValueError(f"modes[{part}] must be one of {list(known)}, got {name!r}")
    return [known[name] for name in named]
