"""The small model of the built-in example, and the sizes of a model that bound its speed-up."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from treetrain.demo.make_tokenizer import SHIPPED
from treetrain.tree.metrics import ModelShape


def make_small_model(seed: int) -> tuple[PreTrainedModel, Any]:
    """Makes an untrained Llama of 0.9 M parameters with the shipped tokenizer.

    Args:
        seed: seed of the weights.

    Returns:
        The model in float32, and the tokenizer.
    """
    tokenizer = AutoTokenizer.from_pretrained(SHIPPED)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=352,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=8,
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
