"""Saves a trained model so that a folder holds all of it or none of it."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

CONFIG = "config.json"


def save_model(model: PreTrainedModel, tokenizer: Any, folder: str | Path) -> None:
    """Write model and tokenizer into a folder that `from_pretrained` loads.

    Everything is written beside the folder first and then moved file by file, the model's config
    last: until it is there, nothing loads. An interruption leaves no half-written file.

    Args:
        model: the model, given back by `undo()`.
        tokenizer: its tokenizer, or None.
        folder: where; made if it is missing. Files of other names in it stay.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        model.save_pretrained(partial)
        if tokenizer is not None:
            tokenizer.save_pretrained(partial)
        remove_model(folder)
        names = sorted(file.name for file in partial.iterdir())
        for name in sorted(names, key=lambda name: name == CONFIG):
            os.replace(partial / name, folder / name)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def remove_model(folder: Path) -> None:
    """Take a saved model out of a folder, its config first: nothing loads what is left.

    Args:
        folder: the folder; its other files stay.
    """
    (folder / CONFIG).unlink(missing_ok=True)
    for stale in folder.glob("model*.safetensors*"):
        stale.unlink()
