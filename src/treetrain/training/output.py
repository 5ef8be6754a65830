"""The folder of a run: claimed before anything is computed, and its lines of figures."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from treetrain.data.text_files import load_json
from treetrain.errors import naming_file
from treetrain.training.checkpoint_folders import (
    PARTIAL,
    clean,
    find_checkpoints,
    keep_newest,
    sync,
)
from treetrain.training.holding import hold_output
from treetrain.training.saving import UNFINISHED, find_model, remove_model

METRICS = "metrics.jsonl"
SETTINGS = "config.yaml"
CHECK = "check.json"
#: What the verb writes about a run at its end.
REPORTS = ("report.html", "inspection.json", "loss.png", "speed.png")
FILES = (METRICS, SETTINGS, CHECK, *REPORTS)


def claim_output(folder: Path, *, overwrite: bool, resume: bool = False) -> None:
    """Make the output folder, and refuse one that holds an earlier run or cannot be written.

    Args:
        folder: the folder.
        overwrite: whether an earlier run's files may be replaced.
        resume: whether an earlier run is to go on.

    Raises:
        ValueError: there is an earlier run, or none to go on with, or a file; or a run is going on
            in the folder.
        OSError: the folder cannot be written.
    """  # noqa: DOC502 (hold_output raises)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"output must be a folder, got the file {folder}")
    found = find_run(folder)
    if resume and METRICS not in found and not find_checkpoints(folder):
        raise ValueError(f"output must hold a run to resume, got {folder} without {METRICS}")
    if found and not (overwrite or resume):
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        raise ValueError(
            f"output must be a folder without an earlier run, or files of the same names, got "
            f"{folder} with {', '.join(found[:3])}{more}; go on with --resume, name another one, "
            "or set overwrite=true, which removes them"
        )
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OSError(
            f"output must be a folder that can be written, got {folder}: {error.strerror}"
        ) from error
    with hold_output(folder):
        clean(folder, {*FILES, UNFINISHED})


def find_run(folder: Path) -> list[str]:
    """Find what a run has written into a folder, or would remove from it.

    Args:
        folder: the folder; it may be missing.

    Returns:
        Names of files and checkpoints; none of what a run leaves alone.
    """
    files = [name for name in FILES if (folder / name).exists()]
    return [*files, *(path.name for path in find_checkpoints(folder)), *find_model(folder)]


def check_inputs(folder: Path, files: Iterable[str]) -> None:
    """Refuse data that a run would remove or write over.

    Args:
        folder: the output folder.
        files: files that are read.

    Raises:
        ValueError: one of them is a file of a run in the folder.
    """
    written = {(folder / name).resolve() for name in find_run(folder)}
    for file in files:
        path = Path(file).resolve()
        if not written.isdisjoint({path, *path.parents}):
            raise ValueError(
                f"output must be a folder whose run does not hold the data, got {folder} with "
                f"{file}; name another folder"
            )


def remove_run(folder: Path) -> None:
    """Take an earlier run's model, checkpoints and figures out of a folder.

    Args:
        folder: the folder; its other files stay.
    """
    remove_model(folder)
    keep_newest(folder, 0)
    for name in FILES:
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

    Raises:
        OSError: it cannot be written; the file is named.
    """  # noqa: DOC502 (naming_file raises)
    partial = path.with_name(f"{PARTIAL}{path.name}")
    with naming_file(path):
        try:
            partial.write_text(text, encoding="utf-8")
            sync(partial)
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)


def append_line(path: Path, line: str) -> None:
    """Add a line to a file.

    Args:
        path: the file.
        line: the line, without its end.

    Raises:
        OSError: it cannot be written, or in part only; the file is named.
    """  # noqa: DOC502 (naming_file raises)
    with naming_file(path), path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
