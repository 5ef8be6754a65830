"""The configuration of the model a command was told to use, and what it says before loading."""

from __future__ import annotations

import pickle
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treetrain.cli.sources import explain, find_path, find_reason, reach_hub, without_warnings
from treetrain.cli.tokenizers import SMOLLM2, find_smollm2

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

TINY = "tiny:"
EXPECTED = f"model must be a folder, a .gguf file, '{SMOLLM2}', '{TINY}TYPE' or a model's name"

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
    "rotary_dim": 16,
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


def check_source(
    name: str | Path, *, attention: str | None = None, trust_remote_code: bool = False
) -> None:
    """Refuses a model before its weights are loaded, as far as its name and config say so.

    Args:
        name: what `load_model` takes.
        attention: attention implementation, "sdpa" or "eager"; None: transformers' choice.
        trust_remote_code: whether code that comes with the model may run.

    Raises:
        ValueError: nothing of that name can be loaded.
        UnsupportedModelError: it cannot be trained on trees.
    """  # noqa: DOC502 (reading and checking the config raise)
    config = read_config(name, trust_remote_code=trust_remote_code)
    if config is not None:
        from treetrain.models.outline import check_config

        with without_warnings():
            check_config(config, attention=attention)


def locate_model(name: str | Path) -> Path:
    """Finds the folder or the GGUF file of a model that is here.

    Args:
        name: what `load_model` takes, but for a tiny model.

    Returns:
        The folder or file, or the name as a path where it may be one of the hub.

    Raises:
        ValueError: it can only be a path, and leads nowhere.
    """  # noqa: DOC502 (find_path raises)
    path = find_smollm2() if str(name) == SMOLLM2 else find_path(name, expected=EXPECTED)
    if path.is_dir() and not (path / "config.json").is_file():
        path = next(iter(sorted(path.glob("*.gguf"))), path)
    return path


def read_config(name: str | Path, *, trust_remote_code: bool = False) -> PreTrainedConfig | None:
    """Reads the configuration of a model.

    Args:
        name: what `load_model` takes.
        trust_remote_code: whether code that comes with the model may run.

    Returns:
        The configuration; None for a GGUF file, which holds it between the words of a vocabulary
        that takes as long to read as the weights.

    Raises:
        ValueError: nothing of that name can be loaded.
    """
    from transformers import AutoConfig

    text = str(name)
    if text.startswith(TINY):
        return make_tiny_config(text.removeprefix(TINY))
    path = locate_model(name)
    if path.is_file() and path.suffix == ".gguf":
        return None
    no_hub = reach_hub(path)
    try:
        with without_warnings():
            return AutoConfig.from_pretrained(
                path.as_posix(),
                local_files_only=path.exists() or no_hub is not None,
                trust_remote_code=trust_remote_code,
            )
    # transformers raises whatever the file format, the hub's client or the missing package raises.
    except Exception as error:
        raise ValueError(explain_source(text, path, error, no_hub=no_hub)) from error


def explain_source(text: str, path: Path, error: Exception, *, no_hub: str | None) -> str:
    """Says what became of a model's name.

    Args:
        text: the name.
        path: what `locate_model` gave.
        error: what transformers raised.
        no_hub: what `reach_hub` found.

    Returns:
        A sentence.
    """
    kind = "folder" if path.is_dir() else "file" if path.is_file() else "name"
    if (path / "adapter_config.json").is_file() and not (path / "config.json").is_file():
        reason = "that holds adapters alone: name the model they were trained on, or merge them"
    elif isinstance(error, pickle.UnpicklingError):
        # What torch says of a pickle that it does not run is how to run it all the same.
        reason = (
            "whose weights are a pickle of more than tensors, which is not run: save them as "
            "safetensors"
        )
    else:
        reason = explain(error, no_hub)
    return f"{EXPECTED}, got the {kind} {text!r} {reason}"


def make_tiny_config(
    model_type: str, *, vocabulary: int | None = None, positions: int | None = None
) -> PreTrainedConfig:
    """Makes the configuration of a tiny model.

    Args:
        model_type: a model type of transformers, for example "llama".
        vocabulary: size of the vocabulary; None: 1024.
        positions: longest sequence, in tokens; at least 2048.

    Returns:
        The configuration.

    Raises:
        ValueError: the type is unknown, or no model of it can be that small.
    """  # noqa: DOC502 (make_config raises)
    sizes: dict[str, Any] = {"vocab_size": vocabulary or 1024}
    for key in ("max_position_embeddings", "n_positions"):
        sizes[key] = max(positions or 0, 2048)
    # Ids that a type gives its special tokens by default may lie beyond a small vocabulary.
    sizes |= dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
    return make_config(model_type, {**TINY_SIZES, **sizes}, skip_unknown=True)


def _is_derived(config: PreTrainedConfig, key: str) -> bool:
    """Whether a value is worked out from others and cannot be set."""
    found = getattr(type(config), key, None)
    return isinstance(found, property) and found.fset is None


def make_config(
    model_type: str, values: dict[str, Any], *, skip_unknown: bool = False
) -> PreTrainedConfig:
    """Makes a configuration, without dropout where the values do not ask for it.

    Args:
        model_type: a model type of transformers, for example "llama".
        values: values that are not the type's defaults.
        skip_unknown: whether values that the type's configuration does not have are left out.

    Returns:
        The configuration.

    Raises:
        ValueError: the type is unknown, has no such value, or refuses one.
    """
    from transformers import CONFIG_MAPPING, AutoConfig

    if model_type not in CONFIG_MAPPING:
        hint = _closest(model_type, list(CONFIG_MAPPING))
        raise ValueError(f"model type must be one of transformers, got {model_type!r}{hint}")
    default = AutoConfig.for_model(model_type)
    text = default.get_text_config()
    if skip_unknown and text is not default:
        raise ValueError(
            f"a tiny model must be of text alone, got {model_type!r}, which is composed of several "
            f"configurations; name its text part, tiny:{text.model_type}"
        )
    unknown = [key for key in values if not hasattr(default, key) or _is_derived(default, key)]
    if unknown and not skip_unknown:
        hint = _closest(unknown[0], list(default.to_dict()))
        raise ValueError(f"a configuration of {model_type} has no value {unknown[0]!r}{hint}")
    chosen = {key: value for key, value in values.items() if key not in unknown}
    if skip_unknown and hasattr(default, "kv_lora_rank"):
        # Compressed keys and values are spread out to every query head.
        chosen["num_key_value_heads"] = chosen["num_attention_heads"]
    for key, value in text.to_dict().items():
        # Old types drop by default; a shared token cannot be dropped once per sequence.
        if "drop" in key and isinstance(value, float) and value > 0:
            chosen.setdefault(key, 0.0)
    try:
        return AutoConfig.for_model(model_type, **chosen)
    # A configuration checks itself in its own ways.
    except Exception as error:
        raise ValueError(explain_unmade(model_type, error)) from error


def explain_unmade(model_type: str, error: Exception) -> str:
    """Says why there is no model of a type.

    Args:
        model_type: the type.
        error: what transformers raised.

    Returns:
        A sentence.
    """
    return f"a model of type {model_type!r} cannot be made: {find_reason(error)}"


def _closest(name: str, known: list[str]) -> str:
    close = get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
