from __future__ import annotations

import sys

import pytest

from treetrain.progress import Progress


class Clock:
    """Seconds that pass only when told."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_each_stage_is_said_at_once_where_stderr_is_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    progress = Progress("... ", clock=Clock())
    progress("loading the model")
    for stage, parts in (("separate", 3), ("tree", 1)):
        for done in range(parts + 1):
            progress(stage, done, parts)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "... loading the model",
        "... separate: 0 of 3",
        "... tree: 0 of 1",
    ]


def test_a_long_stage_is_said_again_less_and_less_often(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = Clock()
    progress = Progress(clock=clock)
    for second in range(36_000):
        clock.now = second
        progress("step", second, 36_000, f"loss {second}")
    lines = capsys.readouterr().err.splitlines()
    seconds = [int(line.split()[1]) for line in lines]
    assert seconds[:3] == [0, 10, 20]
    assert seconds[-1] - seconds[-2] == 60
    assert lines[1] == "step: 10 of 36000, loss 10"


def test_a_terminal_has_one_line_that_is_written_over(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    progress = Progress(clock=Clock())
    progress("tree", 0, 2)
    progress("tree", 1, 2)
    progress.wipe()
    assert capsys.readouterr().err == "\r\033[Ktree: 0 of 2\r\033[Ktree: 1 of 2\r\033[K"
