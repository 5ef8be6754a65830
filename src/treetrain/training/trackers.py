"""Services that draw a run while it goes on: TensorBoard, trackio and wandb, by name.

None of them is imported before a run asks for it; one that is not installed is refused before the
run begins.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from treetrain.training.trainer import StepMetrics

Log = Callable[[dict[str, float], int], None]
Tell = Callable[[StepMetrics], None]

PROJECT = "treetrain"


def check_trackers(names: Sequence[str]) -> None:
    """Refuse trackers that are unknown, named twice or not installed.

    Args:
        names: what the user asked for.

    Raises:
        ValueError: one cannot be used; the message says which and how to install it.
    """
    for place, name in enumerate(names):
        if name not in TRACKERS:
            known = ", ".join(TRACKERS)
            raise ValueError(f"trackers[{place}] must be one of {known}, got {name!r}")
        if name in names[:place]:
            raise ValueError(f"trackers[{place}] must be named once, got {name!r} again")
        if find_spec(name) is None:
            raise ValueError(
                f"trackers[{place}] must be installed, got {name!r}, which is not: pip install "
                f"{name}"
            )


@contextmanager
def open_trackers(
    names: Sequence[str], folder: Path, config: Mapping[str, Any], *, done: int = 0
) -> Iterator[Tell]:
    """Open trackers for a run, and close them at its end, however it ends.

    Args:
        names: trackers by name.
        folder: the run's folder, whose name is the run's; files of a tracker go there.
        config: the run's configuration, for those that show it.
        done: steps that an earlier process has taken, where a run is resumed.

    Yields:
        A function that tells every tracker the figures of a step.
    """
    check_trackers(names)
    with ExitStack() as stack:
        logs = [stack.enter_context(TRACKERS[name](folder, config, done)) for name in names]

        def tell(metrics: StepMetrics) -> None:
            figures = {
                name: float(value)
                for name, value in asdict(metrics).items()
                if name != "step" and isinstance(value, int | float)
            }
            for log in logs:
                log(figures, metrics.step)

        yield tell


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
