"""Saves a trained model so that a folder holds all of it or none of it."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from treetrain.training.checkpoint_folders import PARTIAL, sync

CONFIG = "config.json"
ADAPTER_CONFIG = "adapter_config.json"
#: What `from_pretrained` looks for first; the last files to come and the first to go.
_FIRST_READ = (CONFIG, ADAPTER_CONFIG)
_WEIGHTS = re.compile(r"(adapter_)?model(-\d+-of-\d+)?\.safetensors(\.index\.json)?")
#: Where a model is written before it is moved into its folder.
UNFINISHED = "model"


def save_model(model: Any, tokenizer: Any, folder: str | Path) -> None:
    """Write model and tokenizer into a folder that `from_pretrained` loads.

    Everything is written into a folder of its own first and then moved file by file, the model's
    config last: until it is there, nothing loads. An interruption leaves no half-written file.

    Args:
        model: the model, given back by `undo()`; of one in a wrapper of peft the adapters.
        tokenizer: its tokenizer, or None.
        folder: where; made if it is missing. Files of other names in it stay.

    Raises:
        OSError: it cannot be written.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f"{PARTIAL}{UNFINISHED}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        write_model(model, tokenizer, partial)
        remove_model(folder)
        names = sorted(file.name for file in partial.iterdir())
        for name in sorted(names, key=lambda name: name in _FIRST_READ):
            sync(partial / name)
            os.replace(partial / name, folder / name)
    # torch and safetensors have their own errors for a disk that is full.
    except (RuntimeError, SafetensorError) as error:
        raise OSError(f"the model could not be written into {folder}: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_model(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write model and tokenizer, each file with the permissions that new files have.

    safetensors writes its own for the owner alone, and a server that runs as another could not
    load them.

    Args:
        model: as for `save_model`.
        tokenizer: its tokenizer, or None.
        folder: a folder that is there.
    """
    model.save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    written = next(folder / name for name in _FIRST_READ if (folder / name).exists())
    for path in folder.glob("*.safetensors"):
        shutil.copymode(written, path)


def remove_model(folder: Path) -> None:
    """Take a saved model out of a folder, its config first: nothing loads what is left.

    Args:
        folder: the folder; its other files stay.
    """
    for name in find_model(folder):
        (folder / name).unlink(missing_ok=True)


def is_saved(folder: Path) -> bool:
    """Tell whether a folder holds a whole saved model.

    Args:
        folder: the folder.

    Returns:
        Whether the file is there that comes last.
    """
    return any((folder / name).exists() for name in _FIRST_READ)


def find_model(folder: Path) -> list[str]:
    """Find the files of a saved model, or of what is left of one.

    Args:
        folder: the folder.

    Returns:
        Their names, first those without which nothing loads.
    """
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    weights = [name for name in names if _WEIGHTS.fullmatch(name)]
    return [name for name in _FIRST_READ if name in names] + weights
