"""Services that draw a run while it goes on: TensorBoard, trackio and wandb, by name.

None of them is imported before a run asks for it; one that is not installed is refused before the
run begins.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from treetrain.training.observers import RunOutline
from treetrain.training.tracker_names import check_trackers
from treetrain.training.trainer import StepMetrics

Log = Callable[[dict[str, float], int], None]

PROJECT = "treetrain"


class Trackers:
    """Tells the trackers of a run's configuration the figures of every step.

    A context manager that opens them, and closes them however the run ends.

    Args:
        outline: the run, whose folder's name is the run's name.
    """

    def __init__(self, outline: RunOutline) -> None:
        self._outline = outline
        self._stack = ExitStack()
        self._logs: list[Log] = []

    def __enter__(self) -> Self:
        outline = self._outline
        check_trackers(outline.config.trackers)
        config = outline.config.model_dump(mode="json")
        with ExitStack() as stack:
            for name in outline.config.trackers:
                opened = TRACKERS[name](outline.folder, config, outline.start)
                self._logs.append(stack.enter_context(opened))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        self._logs = []
        return self._stack.__exit__(kind, error, trace)

    def tell(self, metrics: StepMetrics) -> None:
        """Tells a step.

        Args:
            metrics: its figures; what is no number is left out.
        """
        figures = {
            name: float(value)
            for name, value in metrics.figures.items()
            if name != "step" and value is not None
        }
        for log in self._logs:
            log(figures, metrics.step)


@contextmanager
def _tensorboard(folder: Path, config: Mapping[str, Any], done: int) -> Iterator[Log]:
    from torch.utils.tensorboard import SummaryWriter

    # Events of steps that a killed process took after its last checkpoint are taken back.
    writer = SummaryWriter(str(folder / "tensorboard"), purge_step=done + 1 if done else None)

    def log(figures: dict[str, float], step: int) -> None:
        for name, value in figures.items():
            writer.add_scalar(name, value, step)

    try:
        writer.add_text("config", f"```\n{json.dumps(config, indent=1, default=str)}\n```", done)
        yield log
    finally:
        writer.close()


@contextmanager
def _trackio(folder: Path, config: Mapping[str, Any], done: int) -> Iterator[Log]:
    trackio = import_module("trackio")
    resume = "allow" if done else "never"
    run = trackio.init(PROJECT, name=folder.resolve().name, config=dict(config), resume=resume)
    try:
        yield lambda figures, step: run.log(figures, step=step)
    finally:
        run.finish()


@contextmanager
def _wandb(folder: Path, config: Mapping[str, Any], done: int) -> Iterator[Log]:
    wandb = import_module("wandb")
    marker = folder / "wandb-id.txt"
    known = marker.read_text(encoding="utf-8") if done and marker.exists() else None
    run = wandb.init(
        project=PROJECT,
        name=folder.resolve().name,
        dir=str(folder),
        config=dict(config),
        id=known,
        resume="allow" if known else None,
    )
    marker.write_text(run.id, encoding="utf-8")
    code = 1
    try:
        yield lambda figures, step: run.log(figures, step=step)
        code = 0
    finally:
        run.finish(exit_code=code)


#: Trackers by the name of the package that each needs.
TRACKERS: dict[str, Callable[[Path, Mapping[str, Any], int], AbstractContextManager[Log]]] = {
    "tensorboard": _tensorboard,
    "trackio": _trackio,
    "wandb": _wandb,
}
