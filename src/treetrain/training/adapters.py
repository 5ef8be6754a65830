"""Adapters of peft that are trained in place of a model's weights.

peft is imported where adapters are asked for; without it a run that wants none needs none.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from treetrain.training.settings import LoraConfig

WEIGHTS = "adapter_model.safetensors"


def add_lora(model: Any, config: LoraConfig, *, seed: int) -> Any:
    """Put low-rank adapters into a model.

    Args:
        model: a plain model, which is changed in place.
        config: the adapters.
        seed: seed of their weights; the global generator is left alone.

    Returns:
        The model in peft's wrapper, whose adapters alone are trainable.

    Raises:
        ValueError: peft is missing, or finds no layer of these names.
    """
    try:
        import peft
    except ImportError as error:
        raise ValueError(
            "model.lora must have the package peft, got none: pip install 'treetrain[lora]'"
        ) from error
    settings = peft.LoraConfig(
        r=config.r,
        lora_alpha=config.alpha,  # pyright: ignore[reportArgumentType] (any number multiplies)
        target_modules=config.targets,
        use_rslora=config.rank_stabilised,
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(), warnings.catch_warnings():
        # peft asks for a name that transformers is about to take away; no user can change that.
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        torch.manual_seed(seed)
        try:
            return peft.get_peft_model(model, settings)
        except ValueError as error:
            raise ValueError(
                f"model.lora.targets must name layers of the model: {error}"
            ) from error


def is_adapted(model: Any) -> bool:
    """Tell whether a model is one of peft, of which the adapters are saved.

    Args:
        model: the model.

    Returns:
        Whether it has adapters as peft's wrapper has.
    """
    return hasattr(model, "peft_config") and hasattr(model, "get_base_model")


def load_adapters(model: Any, folder: Path) -> None:
    """Copy saved adapters into those of a model.

    Args:
        model: a model of peft with the same adapters.
        folder: what its `save_pretrained` wrote.

    Raises:
        ValueError: the folder holds other adapters.
    """
    from peft import get_peft_model_state_dict, set_peft_model_state_dict

    saved = load_file(folder / WEIGHTS)
    set_peft_model_state_dict(model, saved)
    own = get_peft_model_state_dict(model)
    other = sorted(set(own) ^ set(saved)) or sorted(
        name for name in own if not _same(own[name], saved[name])
    )
    if other:
        raise ValueError(
            f"{folder / WEIGHTS}: must hold this model's adapters, got others in {other[0]}"
        )


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one.cpu(), other.cpu())
