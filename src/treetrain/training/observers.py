"""What follows a run while it goes on: a display, trackers; a run knows no more of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from treetrain.packing.batch import Batch
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
