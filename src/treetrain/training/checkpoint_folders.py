"""Folders of checkpoints: written beside and renamed when whole, counted, checked and removed.

A folder that bears its final name is whole: its files, and then the folder, are on the disk before
it gets that name in one step, and it loses the name in one step before its files go. So a kill at
any moment leaves whole folders, and others that `clean` knows by their names. What is in a
checkpoint is in `checkpoint`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Collection
from pathlib import Path

from treetrain.data.text_files import read_json

MANIFEST = "files.json"
#: As `write_checkpoint` names them; those of other trainers, with fewer digits, are left alone.
_WHOLE = re.compile(r"checkpoint-(\d{6,})")
#: What is written goes by this name until it is whole, what is removed by the other.
PARTIAL, REMOVED = ".partial-", ".removed-"


def checkpoint_step(folder: Path) -> int:
    """Read the step off the name of a checkpoint.

    Args:
        folder: a whole checkpoint.

    Returns:
        The steps that were done.

    Raises:
        ValueError: it has another name.
    """
    found = _WHOLE.fullmatch(folder.name)
    if found is None:
        raise ValueError(f"checkpoint must be a folder checkpoint-STEP, got {folder.name!r}")
    return int(found[1])


def find_checkpoints(output: Path) -> list[Path]:
    """Find the whole checkpoints of a run.

    Args:
        output: folder of the run.

    Returns:
        Their folders, the oldest first.
    """
    if not output.is_dir():
        return []
    whole = [path for path in output.iterdir() if _WHOLE.fullmatch(path.name) and path.is_dir()]
    return sorted(whole, key=checkpoint_step)


def clean(output: Path, names: Collection[str]) -> list[str]:
    """Remove what a killed run left of checkpoints and files that it was writing or removing.

    Args:
        output: folder of the run.
        names: what else, but checkpoints, is written under another name first.

    Returns:
        The names of what was removed.
    """
    partial = [path for path in output.iterdir() if _is_left(path.name, names)]
    for path in partial:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    return sorted(path.name for path in partial)


def write_checkpoint(output: Path, step: int, save: Callable[[Path], None]) -> Path:
    """Write a checkpoint so that it is there whole or not at all.

    Args:
        output: folder of the run.
        step: steps that were done.
        save: writes the files into the folder it is given.

    Returns:
        The checkpoint.

    Raises:
        BaseException: as it came; nothing half-written is left then.
    """
    final = output / f"checkpoint-{step:06d}"
    partial = output / f"{PARTIAL}{final.name}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        save(partial)
        names = sorted(str(path.relative_to(partial)) for path in _files(partial))
        sizes = {name: (partial / name).stat().st_size for name in names}
        (partial / MANIFEST).write_text(json.dumps(sizes, indent=1), encoding="utf-8")
        for path in [*_files(partial), *_folders(partial)]:
            sync(path)
        if final.exists():
            _remove(final)
        os.rename(partial, final)
        sync(output)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return final


def keep_newest(output: Path, count: int | None) -> None:
    """Remove all checkpoints but the newest.

    Args:
        output: folder of the run.
        count: how many stay; None: all.
    """
    if count is not None:
        whole = find_checkpoints(output)
        for path in whole[: max(len(whole) - count, 0)]:
            _remove(path)


def check_whole(folder: Path) -> None:
    """Refuse a checkpoint that lost something after it was written.

    Args:
        folder: the checkpoint.

    Raises:
        ValueError: a file is missing or has another size; names the first.
    """
    way_out = way_to_the_one_before(folder)
    try:
        sizes = read_json(folder / MANIFEST)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{folder / MANIFEST}: must list the files, got {error}; {way_out}"
        ) from error
    if not isinstance(sizes, dict) or not all(type(size) is int for size in sizes.values()):
        raise ValueError(
            f"{folder / MANIFEST}: must list the files with their sizes, got {sizes!r:.60}; "
            f"{way_out}"
        )
    for name, size in sizes.items():
        path = folder / name
        if not path.is_file():
            raise ValueError(f"{path}: must be a file of {size:,} bytes, got none; {way_out}")
        if path.stat().st_size != size:
            raise ValueError(
                f"{path}: must have {size:,} bytes, got {path.stat().st_size:,}: it was cut or "
                f"changed after it was written; {way_out}"
            )


def way_to_the_one_before(folder: Path) -> str:
    """Say what to do about a checkpoint that cannot be resumed from.

    Args:
        folder: the checkpoint.

    Returns:
        The end of a message.
    """
    return f"move {folder} away to resume from the checkpoint before it"


def sync(path: Path) -> None:
    """Wait until a file or the entries of a folder are on the disk.

    Args:
        path: the file or the folder.
    """
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _is_left(name: str, names: Collection[str]) -> bool:
    for mark in (PARTIAL, REMOVED):
        if name.startswith(mark):
            rest = name.removeprefix(mark)
            return rest in names or _WHOLE.fullmatch(rest) is not None
    return False


def _remove(folder: Path) -> None:
    # Without its name first: half of a checkpoint must not pass for a whole one.
    gone = folder.with_name(f"{REMOVED}{folder.name}")
    shutil.rmtree(gone, ignore_errors=True)
    os.rename(folder, gone)
    shutil.rmtree(gone)


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def _folders(folder: Path) -> list[Path]:
    return [*(path for path in folder.rglob("*") if path.is_dir()), folder]
