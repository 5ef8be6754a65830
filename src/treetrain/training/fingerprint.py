"""What a run depends on, so that it is resumed only where it would go on as it would have.

Three things are taken down: the configuration, digests of the sequences, and a digest of weights
that no checkpoint holds. Where the sequences are the same, it does not matter from which files they
were read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import nn

from treetrain.data.sample import Sample
from treetrain.training.config import TrainConfig

#: Keys that change nothing of what is computed; one that ends in a dot stands for all below it.
FREE = (
    "output",
    "overwrite",
    "save_every",
    "keep_last",
    "device",
    "check.",
    "trackers",
    "data.",
    "evaluation.files",
    "evaluation.every",
)
#: Below `data.` this one orders the rows.
BOUND = "data.shuffle"
#: They may change where the learning rate does not depend on the length of the run.
LENGTHS = ("steps", "epochs")
#: Parts of a fingerprint about sequences, and what is counted of them.
DATA = ("data", "evaluation")
COUNTS = ("sequences", "flat_tokens")
#: Integers as wide as the numbers of a tensor, by bytes.
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def take_fingerprint(
    config: TrainConfig,
    samples: Sequence[Sample],
    evaluated: Sequence[Sample] = (),
    *,
    model: nn.Module | None = None,
) -> dict[str, Any]:
    """Take down what a run depends on.

    Args:
        config: the run.
        samples: the sequences that are trained, in their order.
        evaluated: those that are evaluated.
        model: the model before its first step; None: no weight of it is taken down.

    Returns:
        Values for JSON: "config" by dotted key, "data" and "evaluation" as counts and digests, and
        under "model" a digest of the weights before the first step that decide about later ones:
        all of them where the loss asks that model, otherwise those that are not trained.
    """
    found = [] if model is None else model.named_parameters()
    weights = [
        (name, one) for name, one in found if config.loss.needs_start or not one.requires_grad
    ]
    return {
        "model": {"weights": _digest_weights(weights) if weights else None},
        "config": _flatten(config.model_dump(mode="json")),
        "data": _digest(samples),
        "evaluation": _digest(evaluated),
    }


def check_parts(fingerprint: Mapping[str, Any], source: str) -> None:
    """Refuse what is no fingerprint.

    Args:
        fingerprint: what was read from somewhere.
        source: the file; put before the message.

    Raises:
        ValueError: a part is missing.
    """
    for part in ("config", *DATA):
        if part not in fingerprint:
            raise ValueError(
                f"{source}: fingerprint must have the part {part!r}, got {list(fingerprint)}"
            )


def find_differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Find what keeps a run from being resumed.

    Args:
        saved: the fingerprint in the checkpoint.
        now: that of the run which is to go on.

    Returns:
        A line for each difference, "key: saved -> now", those of the configuration first; none
        where the run may go on.
    """
    parts = {part: saved.get(part, {}) for part in now}
    data = [line for part in DATA for line in _compare_data(part, parts[part], now[part])]
    before, after = parts["config"], now["config"]
    constant = before.get("schedule.kind") == after.get("schedule.kind") == "constant"
    found: list[str] = []
    if saved.get("model", now["model"]) != now["model"]:
        found.append("model: other weights before the first step")
    for name in {**before, **after}:
        # Why the sequences are others is worth knowing, too.
        free = is_free(name) and not (data and name.startswith("data."))
        if free or (constant and name in LENGTHS) or before.get(name) == after.get(name):
            continue
        found.append(f"{name}: {_show(before.get(name))} -> {_show(after.get(name))}")
    return found + data


def _compare_data(part: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    counts = [
        f"{part}.{name}: {before.get(name)} -> {after.get(name)}"
        for name in COUNTS
        if before.get(name) != after.get(name)
    ]
    # Where there are others, none of the digests is the same.
    return counts or [
        f"{part}.{name}: other values"
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    ]


def is_free(name: str) -> bool:
    """Tell whether a key may change between a run and its resumption.

    Args:
        name: dotted key of a configuration.

    Returns:
        Whether it may.
    """
    if name == BOUND:
        return False
    return any(name.startswith(key) if key.endswith(".") else name == key for key in FREE)


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict) and value:
            flat |= _flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def _digest(samples: Sequence[Sample]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "sequences": len(samples),
        "flat_tokens": sum(map(len, samples)),
    }
    for name in (field.name for field in fields(Sample) if field.name != "source"):
        digest = hashlib.sha256()
        for sample in samples:
            value = getattr(sample, name)
            raw = value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode()
            digest.update(len(raw).to_bytes(8, "little") + raw)
        found[name] = digest.hexdigest()[:16]
    return found


def _digest_weights(weights: Sequence[tuple[str, torch.Tensor]]) -> str:
    digest = hashlib.sha256()
    for name, weight in weights:
        # A sum of the bits is the same in whatever order it is taken, and as fast as memory is.
        bits = weight.detach().reshape(-1).view(_BITS[weight.element_size()])
        described = (name, tuple(weight.shape), str(weight.dtype), int(bits.sum(dtype=torch.int64)))
        digest.update(repr(described).encode())
    return digest.hexdigest()[:16]


def _show(value: Any) -> str:
    return "none" if value is None else repr(value)
