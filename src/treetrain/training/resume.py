"""Finds the checkpoint that a run goes on from, and refuses one of another run."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

from treetrain.training.checkpoint import Place, read_place
from treetrain.training.checkpoint_folders import check_whole, find_checkpoints
from treetrain.training.fingerprint import find_differences
from treetrain.training.saving import is_saved


def find_resumable(
    output: Path, fingerprint: Mapping[str, Any], *, say: Callable[[str], None]
) -> tuple[Path, Place] | None:
    """Find the last whole checkpoint of a run, and check that it is of this run.

    Args:
        output: folder of the run.
        fingerprint: what `take_fingerprint` gives for the run that is to go on.
        say: prints a line for a person.

    Returns:
        The checkpoint and its place; None where the run was stopped before its first one, which is
        said.

    Raises:
        ValueError: data or configuration are others, shown key by key; or a file is cut short; or
            there is a trained model without a checkpoint, which beginning again would cost.
    """
    whole = find_checkpoints(output)
    if not whole and is_saved(output):
        raise ValueError(
            f"output must hold a checkpoint to resume from, got {output} with a trained model and "
            "none; leave --resume out and set overwrite=true to train it again"
        )
    if not whole:
        say(f"note: no whole checkpoint in {output}: the run begins with its first step")
        return None
    folder = whole[-1]
    check_whole(folder)
    place = read_place(folder)
    differences = find_differences(place.fingerprint, fingerprint)
    if differences:
        raise ValueError(
            f"data and configuration must be those of {folder} to resume from it, got others "
            f"(there -> here): {'; '.join(differences)}"
        )
    for name, version in name_versions().items():
        had = place.versions.get(name)
        if had != version:
            say(f"note: {folder.name} was written with {name} {had}, this is {version}")
    return folder, place


def name_versions() -> dict[str, str]:
    """Name the versions that decide about the last digits.

    Returns:
        Versions by name.
    """
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
