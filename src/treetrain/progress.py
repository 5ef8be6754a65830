"""Says on stderr what is being done, to whoever reads it.

A terminal gets one line that is written over; a pipe or a file gets lines at intervals, because a
line that is written over is unreadable there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from time import perf_counter

SHORTEST_WAIT, LONGEST_WAIT = 10.0, 60.0  # seconds between two lines of one stage


def is_terminal() -> bool:
    """Tell whether stderr is a terminal that can write over a line.

    Returns:
        Whether it can; where it cannot move its cursor, what is shown stands below what was.
    """
    return sys.stderr.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")


class Progress:
    """Prints the stage of some work and how much of it is done.

    On a terminal every call is shown. Elsewhere a stage's first call is, and later ones where ten
    seconds have passed since the last line; the longer the work takes, the fewer there are, down to
    one a minute.

    Args:
        margin: what stands before each line.
        clock: seconds; for tests.
    """

    def __init__(self, margin: str = "", *, clock: Callable[[], float] = perf_counter) -> None:
        self._margin = margin
        self._clock = clock
        self._start = self._last = clock()
        self._stage: str | None = None

    def __call__(self, stage: str, done: int = 0, total: int = 0, more: str = "") -> None:
        """Says how far the work is.

        Args:
            stage: what is being done.
            done: parts that are done.
            total: parts in all, 0 where there is only one.
            more: what else is known, for example a loss.
        """
        line = stage + (f": {done} of {total}" if total else "") + (f", {more}" if more else "")
        if is_terminal():
            print(f"\r\033[K{self._margin}{line}", end="", file=sys.stderr, flush=True)
            return
        now = self._clock()
        wait = min(max(SHORTEST_WAIT, 0.1 * (now - self._start)), LONGEST_WAIT)
        if stage != self._stage or now - self._last >= wait:
            print(f"{self._margin}{line}", file=sys.stderr, flush=True)
            self._stage, self._last = stage, now

    def wipe(self) -> None:
        """Empties the line on a terminal, before something else is printed."""
        if is_terminal():
            print("\r\033[K", end="", file=sys.stderr, flush=True)
