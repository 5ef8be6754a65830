"""One run at a time in a folder: a second one would remove what the first is writing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows has none
    fcntl = None


@contextmanager
def hold_output(folder: Path) -> Iterator[None]:
    """Hold the folder of a run; the system lets go of it however the process ends.

    Where the system has no locks of folders, as some network disks, nothing is held.

    Args:
        folder: the folder; it exists.

    Yields:
        While no other process holds it.

    Raises:
        ValueError: another run holds it.
    """
    if fcntl is None:
        yield
        return
    number = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(
                f"output must be a folder in which no run is going on, got {folder}, which another "
                "process holds; wait for its end, or name another folder"
            ) from error
        except OSError:
            pass  # no locks here
        yield
    finally:
        os.close(number)
