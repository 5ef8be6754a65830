"""What a checkpoint holds, in the layout of Hugging Face: weights, optimiser, random states, place.

    model.safetensors, config.json    or adapter_model.safetensors, adapter_config.json
    tokenizer files
    optimizer.pt                      of AdamW
    rng_state.pth                     of torch, numpy and Python
    trainer_state.json                step, epoch, learning rate, place in the data, fingerprint
    files.json                        size of each file

The learning rate is a function of the step and the order of the rows one of seed and epoch, so that
neither has a state of its own. Folders are written by `checkpoint_folders`.
"""

from __future__ import annotations

import json
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict
from torch import nn

from treetrain.data.fields import validate
from treetrain.data.text_files import read_json
from treetrain.models.prepared import PreparedModel
from treetrain.models.wrappers import unwrap_model
from treetrain.training.adapters import is_adapted, load_adapters
from treetrain.training.checkpoint_folders import checkpoint_step, way_to_the_one_before
from treetrain.training.fingerprint import check_parts
from treetrain.training.saving import write_model

OPTIMIZER = "optimizer.pt"
RNG = "rng_state.pth"
STATE = "trainer_state.json"


class Place(BaseModel):
    """Where a run stands after some steps; `trainer_state.json` of a checkpoint.

    Attributes:
        global_step: optimiser steps that are done.
        max_steps: those of the whole run.
        epoch: whole passes over the data.
        row: rows of the next pass that are done.
        learning_rate: of the last step.
        loss: of the last step, nats.
        fingerprint: what `take_fingerprint` gave for the run.
        versions: versions of what wrote it, by name.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    global_step: int
    max_steps: int
    epoch: int
    row: int
    learning_rate: float
    loss: float
    fingerprint: dict[str, dict[str, Any]]
    versions: dict[str, str]


def save_checkpoint(
    folder: Path,
    prepared: PreparedModel,
    model: Any,
    *,
    tokenizer: Any,
    optimizer: torch.optim.Optimizer,
    place: Place,
) -> None:
    """Write everything into a folder.

    Args:
        folder: an empty folder.
        prepared: the model's handle, which is undone meanwhile.
        model: the model, in a wrapper of peft or not.
        tokenizer: its tokenizer, or None.
        optimizer: the optimiser.
        place: where the run stands.
    """
    with prepared.undone():
        write_model(model, tokenizer, folder)
    torch.save(optimizer.state_dict(), folder / OPTIMIZER)
    torch.save(_random_states(), folder / RNG)
    text = json.dumps(place.model_dump(), indent=1)
    (folder / STATE).write_text(text + "\n", encoding="utf-8")


def read_place(folder: Path) -> Place:
    """Read where a run stood.

    Args:
        folder: the checkpoint.

    Returns:
        The place.

    Raises:
        ValueError: the file is missing, none of ours, or of another step than the folder's name
            says.
    """
    path = folder / STATE
    try:
        value = read_json(path)
        if not isinstance(value, dict):
            raise ValueError(f"{path}: must be one JSON object, got {type(value).__name__}")
        place = validate(Place, value, str(path))
        check_parts(place.fingerprint, str(path))
        if place.global_step != checkpoint_step(folder):
            raise ValueError(
                f"{path}: field 'global_step' must be the step that the folder is named after, got "
                f"{place.global_step}"
            )
    except FileNotFoundError as error:
        raise ValueError(
            f"{path}: must be a file, got none; {way_to_the_one_before(folder)}"
        ) from error
    except ValueError as error:
        raise ValueError(f"{error}; {way_to_the_one_before(folder)}") from error
    return place


def load_checkpoint(
    folder: Path, prepared: PreparedModel, model: Any, optimizer: torch.optim.Optimizer
) -> None:
    """Put model, optimiser and random generators into the state of a checkpoint.

    Values are copied into the parameters where they are: where a tensor lies in memory may decide
    in which order a matrix product adds.

    Args:
        folder: the checkpoint.
        prepared: the model's handle.
        model: the model, in a wrapper of peft or not, as it was before the run.
        optimizer: a fresh optimiser of its parameters.

    Raises:
        ValueError: a file cannot be read, or holds another model; names it.
    """
    try:
        if is_adapted(model):
            load_adapters(model, folder)
        else:
            with prepared.undone():
                _load_weights(unwrap_model(model), folder)
        # Neither file may run code.
        optimizer.load_state_dict(
            torch.load(folder / OPTIMIZER, map_location="cpu", weights_only=True)
        )
        _check_state(optimizer)
        _set_random_states(torch.load(folder / RNG, map_location="cpu", weights_only=True))
    # torch, transformers and safetensors raise whatever a broken file leads them to.
    except Exception as error:
        # What torch says of a pickle that it does not run is how to run it all the same.
        unread = isinstance(error, pickle.UnpicklingError)
        found = (
            "a file that holds more or less than tensors and numbers"
            if unread
            else f"{type(error).__name__}: {error}"
        )
        raise ValueError(
            f"{folder}: must be a checkpoint of this run's model, got {found}; "
            f"{way_to_the_one_before(folder)}"
        ) from error


def _load_weights(model: Any, folder: Path) -> None:
    # By the model's own config: sizes of another one would be laid out before they are compared.
    loaded, report = type(model).from_pretrained(
        folder,
        config=model.config,
        dtype=model.dtype,
        local_files_only=True,
        output_loading_info=True,
    )
    # transformers makes up what is missing.
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if report[kind]:
            raise RuntimeError(f"{kind.replace('_', ' ')}: {sorted(map(str, report[kind]))[0]}")
    own, found = model.state_dict(), loaded.state_dict()
    for name, value in own.items():
        if name not in found or found[name].dtype != value.dtype:
            had = f"{found[name].dtype}" if name in found else "none"
            raise RuntimeError(f"{name} as {had} where the model has {value.dtype}")
    nn.Module.load_state_dict(model, found)


def _check_state(optimizer: torch.optim.Optimizer) -> None:
    # torch does not compare sizes, and a fused kernel writes past the end of what is too small.
    if not optimizer.state:
        raise RuntimeError(f"{OPTIMIZER} without the state of any parameter")
    for parameter, state in optimizer.state.items():
        sizes = {name: getattr(value, "shape", None) for name, value in state.items()}
        want = {"step": (), "exp_avg": parameter.shape, "exp_avg_sq": parameter.shape}
        if sizes != want:
            had = {name: size and tuple(size) for name, size in sizes.items()}
            raise RuntimeError(
                f"{OPTIMIZER} with {had} for a parameter of shape {tuple(parameter.shape)}"
            )


def _random_states() -> dict[str, Any]:
    kind, keys, place, has_gauss, gauss = np.random.get_state()  # noqa: NPY002 (others use it)
    version, numbers, normal = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": [
            kind,
            torch.from_numpy(np.asarray(keys).astype(np.int64)),
            place,
            has_gauss,
            gauss,
        ],
        "python": [version, list(numbers), normal],
    }


def _set_random_states(states: dict[str, Any]) -> None:
    torch.set_rng_state(states["torch"])
    if states["cuda"] and len(states["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(states["cuda"])
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))  # noqa: NPY002
    version, numbers, normal = states["python"]
    random.setstate((version, tuple(numbers), normal))
