"""Turns a first Ctrl-C into a wish that is granted after the step; a second one stops at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

#: SIGHUP comes where a terminal is closed; there is none on Windows.
_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


class Interruption:
    """Notes SIGINT, SIGTERM and SIGHUP while it is entered; on the main thread only.

    Args:
        say: prints a line for a person.

    Attributes:
        wished: whether the run is to stop.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._before: dict[int, Any] = {}
        self._terminals: list[int] = []
        self.wished = False

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            self._terminals = [number for number in (1, 2) if os.isatty(number)]
            for number in _SIGNALS:
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
        if number not in (signal.SIGINT, signal.SIGTERM):
            self._leave_terminals()
        self._say(
            "note: interrupted: the step is finished and saved first; once more stops at once"
        )

    def _leave_terminals(self) -> None:
        # Nobody reads any more, and a line that cannot be written must not cost the checkpoint.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for number in self._terminals:
            os.dup2(nowhere, number)
        os.close(nowhere)

    def _give_back(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
