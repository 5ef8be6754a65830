"""What a person sees while a model trains: a bar on a terminal, lines at intervals elsewhere."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from datetime import datetime, timedelta
from time import perf_counter
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar
from rich.table import Column

from treetrain.progress import Progress, is_terminal
from treetrain.training.observers import RunOutline
from treetrain.training.trainer import StepMetrics
from treetrain.wording import say_duration, say_short

RECENT = 20  # steps that the speed shown is the mean of
STAGE = "training step"


class Display:
    """Shows each step: loss, tokens per second, token reduction, and when the run will end.

    A context manager; `tell` is called after each step. A bar is drawn on stderr where that is a
    terminal which can move its cursor; what is printed meanwhile stands above it. Elsewhere there
    are lines, at intervals that grow with the run.

    Args:
        steps: optimiser steps of the whole run.
        done: steps that an earlier process has taken, where a run is resumed.
        clock: seconds; for tests.
        now: the time of day; for tests.
    """

    def __init__(
        self,
        steps: int,
        done: int = 0,
        *,
        clock: Callable[[], float] = perf_counter,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self._steps = steps
        self._before = done
        self._clock = clock
        self._now = now
        self._start = clock()
        self._recent: deque[StepMetrics] = deque(maxlen=RECENT)
        self._evaluation: float | None = None
        self._bar: Bar | None = None
        self._lines = Progress(clock=clock)

    def __enter__(self) -> Self:
        self._start = self._clock()
        if not is_terminal():
            self._lines(STAGE, self._before, self._steps)
            return self
        words = Column(no_wrap=True, overflow="ellipsis")
        self._bar = Bar(
            TextColumn("step {task.completed:,.0f}/{task.total:,.0f}", markup=False),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[told]}", markup=False, table_column=words),
            console=Console(stderr=True),
        )
        self._bar.start()
        self._bar.add_task(STAGE, total=self._steps, completed=self._before, told="")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def tell(self, metrics: StepMetrics) -> None:
        """Shows a step.

        Args:
            metrics: its figures.
        """
        self._recent.append(metrics)
        told = self.describe(metrics)
        if self._bar is None:
            self._lines(STAGE, metrics.step, self._steps, told)
        else:
            self._bar.update(self._bar.task_ids[0], completed=metrics.step, told=told)

    def describe(self, metrics: StepMetrics) -> str:
        """Says what is known after a step.

        Args:
            metrics: its figures.

        Returns:
            One line. Speeds and reduction are those of the last steps together; the end is
            predicted by the mean time of this process's steps, with all that lay between them.
        """
        flat = sum(one.flat_tokens for one in self._recent)
        tree = sum(one.tree_tokens for one in self._recent)
        seconds = sum(one.seconds for one in self._recent)
        if metrics.evaluation_loss is not None:
            self._evaluation = metrics.evaluation_loss
        parts = [f"loss {metrics.loss:.4g}"]
        if self._evaluation is not None:
            parts.append(f"evaluation {self._evaluation:.4g}")
        if seconds and tree:
            parts += [
                f"{say_short(tree / seconds)} tree tokens/s",
                f"{say_short(flat / seconds)} flat-equivalent",
                f"reduction {flat / tree:.2f}",
            ]
        own, left = metrics.step - self._before, self._steps - metrics.step
        if own > 0 and left > 0:
            rest = (self._clock() - self._start) / own * left
            end = self._now() + timedelta(seconds=rest)
            day = "" if end.date() == self._now().date() else f"{end:%Y-%m-%d} "
            parts.append(f"ends {day}{end:%H:%M}, in {say_duration(rest)}")
        return ", ".join(parts)


def show_run(outline: RunOutline) -> Display:
    """Makes the display of a run.

    Args:
        outline: the run.

    Returns:
        The display; entered before the first step.
    """
    return Display(outline.steps, outline.start)
