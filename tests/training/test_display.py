from __future__ import annotations

import os
import pty
import subprocess
import sys
from datetime import datetime

import pytest

from treetrain.training.display import Display
from treetrain.training.trainer import StepMetrics


def metrics_of(step: int, loss: float = 2.0, *, seconds: float = 0.5) -> StepMetrics:
    return StepMetrics(
        step=step,
        epoch=1.0,
        loss=loss,
        lr=1e-3,
        grad_norm=1.0,
        sequences=4,
        flat_tokens=8000,
        tree_tokens=1000,
        partitions=0,
        normaliser=1.0,
        seconds=seconds,
        flat_tokens_per_second=8000 / seconds,
        tree_tokens_per_second=1000 / seconds,
    )


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def noon() -> datetime:
    return datetime(2030, 1, 1, 12, 0)


def test_a_step_tells_loss_speeds_reduction_and_the_end() -> None:
    clock = Clock()
    display = Display(100, clock=clock, now=noon)
    clock.seconds = 60.0
    display._recent.append(metrics_of(10))
    told = display.describe(metrics_of(10, 3.25))
    assert told == (
        "loss 3.25, 2k tree tokens/s, 16k flat-equivalent, reduction 8.00, ends 12:09, in 9 min 0 s"
    )


def test_an_end_on_another_day_names_the_day() -> None:
    clock = Clock()
    display = Display(1001, clock=clock, now=noon)
    clock.seconds = 86.4
    assert display.describe(metrics_of(1)).endswith("ends 2030-01-02 12:00, in 1 d 0 h")


def test_a_resumed_run_is_predicted_by_its_own_steps() -> None:
    clock = Clock()
    display = Display(100, 90, clock=clock, now=noon)
    clock.seconds = 10.0
    assert display.describe(metrics_of(95)).endswith("in 10 s")


def test_the_last_step_has_no_end_to_predict() -> None:
    assert "ends" not in Display(10, now=noon).describe(metrics_of(10))


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), 0.0])
def test_any_loss_can_be_told(loss: float) -> None:
    assert Display(2, now=noon).describe(metrics_of(1, loss)).startswith("loss ")


def test_without_a_terminal_there_are_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with Display(3, clock=clock, now=noon) as display:
        for step in range(1, 4):
            clock.seconds += 30
            display.tell(metrics_of(step))
    out, err = capsys.readouterr()
    assert out == ""
    assert "\x1b" not in err
    assert "\r" not in err
    lines = err.splitlines()
    assert lines[0] == "training step: 0 of 3"
    assert lines[-1].startswith("training step: 3 of 3, loss 2, 2k tree tokens/s")


SCRIPT = """
import sys
from tests.training.test_display import metrics_of
from treetrain.training.display import Display
with Display(3) as display:
    for step in range(1, 4):
        display.tell(metrics_of(step, 1.5))
"""


def on_terminal(term: str, columns: int) -> str:
    """What a process writes to a terminal that it has as stderr."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": term, "COLUMNS": str(columns), "LINES": "24"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    done = subprocess.Popen([sys.executable, "-c", SCRIPT], stderr=theirs, env=environment)
    os.close(theirs)
    written = b""
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        written += piece
    os.close(ours)
    assert done.wait() == 0, written
    return written.decode()


def test_a_terminal_gets_a_bar_with_the_figures() -> None:
    told = on_terminal("xterm", 160)
    assert "step 3/3" in told.replace("\x1b[0m", "")
    assert "loss 1.5" in told
    assert "reduction 8.00" in told
    assert "\x1b[" in told


def test_a_terminal_that_cannot_move_its_cursor_gets_lines() -> None:
    told = on_terminal("dumb", 160)
    assert "training step: 0 of 3\r\n" in told
    assert "step 3/3" not in told
    assert "\x1b[K" not in told
