"""Turns a first Ctrl-C into a wish that is granted after the step; a second one stops at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any


class Interruption:
    """Notes SIGINT and SIGTERM while it is entered; on the main thread only.

    Args:
        say: prints a line for a person.

    Attributes:
        wished: whether the run is to stop.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._before: dict[int, Any] = {}
        self.wished = False

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                # A signal that is ignored (nohup) stays so.
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._give_back()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.wished = True
        self._give_back()
        self._say(
            "note: interrupted: the step is finished and saved first; once more stops at once"
        )

    def _give_back(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
