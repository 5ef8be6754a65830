"""The names of the trackers, for whoever checks one before anything heavy is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Literal, get_args

#: Each is also the name of the package that it needs.
TrackerName = Literal["tensorboard", "trackio", "wandb"]
TRACKER_NAMES: tuple[str, ...] = get_args(TrackerName)


def check_trackers(names: Sequence[str]) -> None:
    """Refuse trackers that are unknown, named twice or not installed.

    Args:
        names: what the user asked for.

    Raises:
        ValueError: one cannot be used; the message says which and how to install it.
    """
    for place, name in enumerate(names):
        if name not in TRACKER_NAMES:
            known = ", ".join(TRACKER_NAMES)
            raise ValueError(f"trackers[{place}] must be one of {known}, got {name!r}")
        if name in names[:place]:
            raise ValueError(f"trackers[{place}] must be named once, got {name!r} again")
        if find_spec(name) is None:
            raise ValueError(
                f"trackers[{place}] must be installed, got {name!r}, which is not: pip install "
                f"{name}"
            )
