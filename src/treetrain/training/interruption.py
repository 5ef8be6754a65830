"""A signal to end becomes a wish that is granted after the step; a second Ctrl-C stops at once."""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

#: Ctrl-C, a scheduler or supervisor, a terminal that closes (which not every system tells).
_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")
_OUTPUTS = (1, 2)  # file descriptors


class Interruption:
    """Notes SIGINT, SIGTERM and SIGHUP while it is entered; on the main thread only.

    A second SIGINT is what it was before. The others may come many times: a terminal that closes
    and its shell both send SIGHUP.

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
            self._terminals = [output for output in _OUTPUTS if os.isatty(output)]
            for number in (getattr(signal, name) for name in _NAMES if hasattr(signal, name)):
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
        for number in list(self._before):
            self._give_back(number)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._leave_closed_outputs()
        if self.wished and number != signal.SIGINT:
            return
        self.wished = True
        self._give_back(signal.SIGINT)
        # Whoever reads may end just now; an error here would end the step half-way.
        with suppress(OSError):
            self._say(
                "note: interrupted: the step is finished and saved first; Ctrl-C now stops at once"
            )

    def _leave_closed_outputs(self) -> None:
        """What is still printed where nobody reads would be an error, so it goes nowhere.

        That is a terminal that closed, and a pipe to a program that the same Ctrl-C ended.
        """
        for output in _OUTPUTS:
            closed = output in self._terminals and not os.isatty(output)
            if closed or _has_no_reader(output):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, output)
                os.close(nowhere)

    def _give_back(self, number: int) -> None:
        if number in self._before:
            signal.signal(number, self._before.pop(number))


def _has_no_reader(output: int) -> bool:
    if not hasattr(select, "poll"):  # Windows has none
        return False
    poll = select.poll()
    poll.register(output, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
