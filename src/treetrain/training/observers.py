"""What follows a run while it goes on: a bar, plots, trackers; a run knows no more of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from tqdm import tqdm

from treetrain.packing.batch import Batch
from treetrain.progress import Progress
from treetrain.training.config import TrainConfig
from treetrain.training.trainer import StepMetrics
from treetrain.tree.partition import Partitions


@dataclass(frozen=True, eq=False)
class RunOutline:
    """What is known of a run before its first step.

    Attributes:
        folder: folder of the run; `metrics.jsonl`, `config.yaml` and `check.json` are in it.
        config: the run.
        steps: optimiser steps of the whole run.
        start: steps that were done before, in the run that is resumed.
        batches: the rows of an epoch.
        partitions: how the trees of some rows are cut.
        evaluated: the rows that are evaluated.
    """

    folder: Path
    config: TrainConfig
    steps: int
    start: int
    batches: Sequence[Batch]
    partitions: Mapping[Batch, Partitions]
    evaluated: Sequence[Batch]


class Observer(Protocol):
    """Follows a run. Left at the end, with the exception where there is one."""

    def __enter__(self) -> Any:
        """Begin."""
        ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Any:
        """End."""
        ...

    def tell(self, metrics: StepMetrics) -> None:
        """Take the figures of a step; its line is in `metrics.jsonl` already.

        Args:
            metrics: the figures, with the evaluation's loss where there was one.
        """
        ...


#: Makes an observer of a run.
Watch = Callable[[RunOutline], Observer]


class Bar:
    """A bar on a terminal, lines at intervals elsewhere.

    Args:
        outline: the run.
    """

    def __init__(self, outline: RunOutline) -> None:
        self._outline = outline
        self._bar: tqdm[Any] | None = None
        self._progress = Progress()

    def __enter__(self) -> Bar:
        start, steps = self._outline.start, self._outline.steps
        if sys.stderr.isatty():
            self._bar = tqdm(total=steps, initial=start, unit="step", dynamic_ncols=True)
        else:
            self._progress("training step", start, steps)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def tell(self, metrics: StepMetrics) -> None:
        """Show a step.

        Args:
            metrics: its figures.
        """
        loss = f"{metrics.loss:.4g}"
        if self._bar is None:
            more = f"loss {loss}, {metrics.seconds:.3g} s"
            self._progress("training step", metrics.step, self._outline.steps, more)
            return
        self._bar.set_postfix(loss=loss, lr=f"{metrics.lr:.2g}", refresh=False)
        self._bar.update()
