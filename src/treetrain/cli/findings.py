"""What `treetrain doctor` looks at: packages, devices, and every backend on every device.

A backend is tried, not looked up: a tiny model is prepared with it, which compares a small tree
with each of its sequences alone.
"""

from __future__ import annotations

import importlib
import os
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Literal

from treetrain.attention.names import BACKEND_NAMES
from treetrain.wording import say_count

State = Literal["ok", "missing", "broken"]

#: Packages that only some uses need, and which.
OPTIONAL = {
    "matplotlib": "loss.png and speed.png of a run",
    "peft": "adapters",
    "accelerate": "models in GGUF files",
    "gguf": "models in GGUF files",
    "tensorboard": "the tracker of that name",
    "trackio": "the tracker of that name",
    "wandb": "the tracker of that name",
}
_REQUIREMENT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\s*>=\s*([0-9.]+))?")


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        kind: "package", "device" or "backend".
        name: its name.
        state: "ok"; "missing": something that not every use needs; "broken": nothing works well
            without it.
        found: what was found, or why it is not there.
        fix: what to do about it; None where it is ok.
    """

    kind: str
    name: str
    state: State
    found: str
    fix: str | None = None


def find_all() -> Iterator[Finding]:
    """Look at everything.

    Yields:
        What was found, one by one, since some of it takes seconds.
    """
    yield _find_python()
    packages = [*find_required(), *find_optional()]
    yield from packages
    torch = _import("torch")
    if isinstance(torch, Finding):
        yield torch
        return
    devices = list(find_devices(torch))
    yield from devices
    transformers = _import("transformers")
    if isinstance(transformers, Finding):
        yield transformers
        return
    for device in devices:
        if device.state == "ok":
            yield from (try_backend(name, device.name) for name in BACKEND_NAMES if name != "auto")


def find_required() -> Iterator[Finding]:
    """Look at the packages that treetrain asks for, and their versions.

    Yields:
        A finding for each, treetrain itself first.
    """
    try:
        version, requirements = metadata.version("treetrain"), metadata.requires("treetrain")
    except metadata.PackageNotFoundError:
        yield Finding(
            "package",
            "treetrain",
            "broken",
            "not installed, so that nobody knows which packages it asks for",
            "pip install . in a clone",
        )
        return
    yield Finding("package", "treetrain", "ok", version)
    for requirement in requirements or []:
        if "extra ==" not in requirement:
            yield _find_package(requirement)


def find_optional() -> Iterator[Finding]:
    """Look at the packages that only some uses need.

    Yields:
        A finding for each.
    """
    for name, use in OPTIONAL.items():
        version = _version(name)
        if version is None:
            found = f"not installed; needed for {use}"
            yield Finding("package", name, "missing", found, f"pip install {name}")
        else:
            yield Finding("package", name, "ok", version)


def find_devices(torch: Any) -> Iterator[Finding]:
    """Look at what torch can compute on.

    Args:
        torch: the module.

    Yields:
        A finding for the CPU, for each CUDA device or why there is none, and for Apple's GPU.
    """
    threads = (
        f"{say_count(torch.get_num_threads(), 'thread')} of "
        f"{say_count(os.cpu_count() or 1, 'processor')}"
    )
    yield Finding("device", "cpu", "ok", f"{platform.machine()}, {threads}")
    # A build for AMD's GPUs calls them cuda too.
    built = torch.version.cuda or torch.version.hip
    if built is None:
        found = f"torch {torch.__version__} is built without CUDA"
        yield Finding("device", "cuda", "missing", found, "install a build of torch for CUDA")
    elif not torch.cuda.is_available():
        found = f"torch {torch.__version__} is built for GPUs ({built}) and sees none"
        fix = "see that nvidia-smi lists one, and that CUDA_VISIBLE_DEVICES hides none"
        yield Finding("device", "cuda", "missing", found, fix)
    else:
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            yield Finding(
                "device",
                f"cuda:{index}",
                "ok",
                f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB, capability "
                f"{properties.major}.{properties.minor}",
            )
    if torch.backends.mps.is_available():
        yield Finding("device", "mps", "ok", "Apple's GPU")


def try_backend(name: str, device: str) -> Finding:
    """Prepare a tiny model with a backend, which compares trees with separate sequences.

    Args:
        name: a backend.
        device: a device of torch.

    Returns:
        Whether it does what it must there, or what went wrong.
    """
    from treetrain.cli.models import load_model, move_model
    from treetrain.models.prepare import prepare

    title = f"{name} on {device}"
    try:
        model = load_model("tiny:llama")
        move_model(model, device)
        prepare(model, name).undo()
    # Whatever torch or transformers raise here is what the user wants to read.
    except Exception as error:  # noqa: BLE001
        fix = "upgrade torch and transformers, or take another backend or device"
        return Finding("backend", title, "broken", _say(error), fix)
    return Finding("backend", title, "ok", "a tiny model on a tree equals separate sequences")


def _find_python() -> Finding:
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    return Finding("package", "python", "ok", found)


def _find_package(requirement: str) -> Finding:
    match = _REQUIREMENT.match(requirement)
    assert match is not None, requirement
    name, least = match.groups()
    version = _version(name)
    fix = f"pip install '{requirement}'"
    if version is None:
        return Finding("package", name, "broken", "not installed", fix)
    if least is not None and _numbers(version) < _numbers(least):
        return Finding("package", name, "broken", f"{version}, older than {least}", fix)
    return Finding("package", name, "ok", version)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> list[int]:
    # "2.13.0+cpu" and "5.0rc1" are compared by the numbers they begin with.
    found = re.match(r"\d+(\.\d+)*", version)
    numbers = [int(part) for part in found.group().split(".")] if found else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return numbers


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    # A broken installation raises whatever its parts raise.
    except Exception as error:  # noqa: BLE001
        fix = f"pip install --force-reinstall {name}"
        return Finding("package", name, "broken", f"cannot be imported: {_say(error)}", fix)


def _say(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:300]
