"""The folder of a run: claimed before anything is computed, and its lines of figures."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from treetrain.data.text_files import load_json
from treetrain.training.checkpoint_folders import (
    PARTIAL,
    clean,
    find_checkpoints,
    keep_newest,
    sync,
)
from treetrain.training.saving import CONFIG, remove_model

METRICS = "metrics.jsonl"
SETTINGS = "config.yaml"
CHECK = "check.json"
#: What the verb writes about a run at its end.
REPORTS = ("report.html", "inspection.json", "loss.png", "speed.png")


def claim_output(folder: Path, *, overwrite: bool, resume: bool = False) -> None:
    """Make the output folder, and refuse one that holds an earlier run or cannot be written.

    Args:
        folder: the folder.
        overwrite: whether an earlier run's files may be replaced.
        resume: whether an earlier run is to go on.

    Raises:
        ValueError: there is an earlier run, or none to go on with, or a file.
        OSError: the folder cannot be written.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"output must be a folder, got the file {folder}")
    found = [name for name in (METRICS, CONFIG) if (folder / name).exists()]
    found += [path.name for path in find_checkpoints(folder)[-1:]]
    if resume and not found:
        raise ValueError(f"output must hold a run to resume, got {folder} without {METRICS}")
    if found and not (overwrite or resume):
        raise ValueError(
            f"output must be a folder without an earlier run, got {folder} with "
            f"{' and '.join(found)}; go on with --resume, name another one, or set overwrite=true"
        )
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OSError(
            f"output must be a folder that can be written, got {folder}: {error.strerror}"
        ) from error
    clean(folder)


def remove_run(folder: Path) -> None:
    """Take an earlier run's model, checkpoints and figures out of a folder.

    Args:
        folder: the folder; its other files stay.
    """
    remove_model(folder)
    keep_newest(folder, 0)
    for name in (METRICS, SETTINGS, CHECK, *REPORTS):
        (folder / name).unlink(missing_ok=True)


def cut_metrics(folder: Path, step: int) -> None:
    """Take lines of steps that a checkpoint does not know out of `metrics.jsonl`.

    What a killed run left behind the last line that is kept may be anything.

    Args:
        folder: folder of the run.
        step: steps that are done.

    Raises:
        ValueError: a line between those that are kept is none of a run; file and line are named.
    """
    path = folder / METRICS
    kept: list[bytes] = []
    wrong: ValueError | None = None
    for number, line in enumerate(path.read_bytes().splitlines() if path.exists() else [], 1):
        try:
            done = _read_step(line, f"{path}:{number}")
        except ValueError as error:
            wrong = wrong or error
            continue
        if done <= step:
            if wrong is not None:
                raise ValueError(f"{wrong}; mend or remove the line to go on") from wrong
            kept.append(line + b"\n")
    write_whole(path, b"".join(kept).decode())


def _read_step(line: bytes, source: str) -> int:
    value = load_json(line, source)
    step = value.get("step") if isinstance(value, dict) else None
    if type(step) is not int:
        raise ValueError(f"{source}: must be an object with a whole 'step', got {line!r:.60}")
    return step


def write_whole(path: Path, text: str) -> None:
    """Write a file so that it has all of a text or what it had before.

    Args:
        path: the file.
        text: its text.
    """
    partial = path.with_name(f"{PARTIAL}{path.name}")
    try:
        partial.write_text(text, encoding="utf-8")
        sync(partial)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
