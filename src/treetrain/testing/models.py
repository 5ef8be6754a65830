"""Tiny random models of real architectures, for tests and benchmarks."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
)

from treetrain.testing.tiny_configs import make_tiny_config

_SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}

#: What a family needs beyond the common sizes, so that its own features bite on short paths.
_FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "qwen3_moe": {
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "decoder_sparse_step": 1,
    },
    "mistral": {"sliding_window": 4},
    "mixtral": {"num_local_experts": 6, "num_experts_per_tok": 2},
    "olmoe": {"num_experts": 6, "num_experts_per_tok": 2},
    "gemma2": {
        "sliding_window": 4,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 3.0,
        "query_pre_attn_scalar": 8,
    },
    "gemma3_text": {"sliding_window": 4, "query_pre_attn_scalar": 8, "sliding_window_pattern": 2},
    "gpt2": {"n_embd": 32, "n_head": 4, "n_layer": 4, "n_positions": 512},
    "gpt_oss": {"sliding_window": 4, "num_local_experts": 4, "num_experts_per_tok": 2},
    "deepseek_v3": {
        "num_key_value_heads": 4,
        "moe_intermediate_size": 24,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "n_group": 2,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 6,
        "head_dim": 4,
    },
}

#: Model types that `make_tiny_model` has sizes of their own for.
FAMILIES = tuple(_FAMILIES)


def make_tiny_model(
    family: str,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    attn_implementation: str | None = None,
    auto: Any = AutoModelForCausalLM,
    **overrides: Any,
) -> PreTrainedModel:
    """Make a tiny random causal model, without dropout, in eval mode.

    Weights are drawn wider than usual, so that a token that sees too much or too little shows in
    the logits.

    Args:
        family: a model type that transformers knows; those in `FAMILIES` have sizes of their own,
            others those of `make_tiny_config`.
        seed: seed of the weights; the global generator is left alone.
        dtype: dtype of the weights.
        attn_implementation: transformers' attention implementation; None for its choice.
        auto: the class of transformers that makes the model of its config.
        **overrides: config values in place of the tiny ones.

    Returns:
        The model.

    Raises:
        ValueError: if transformers knows no such type.
    """
    if family not in CONFIG_MAPPING:
        raise ValueError(f"family must be a model type of transformers, got {family!r}")
    if family == "gemma2" and attn_implementation is None:
        # Older transformers choose sdpa, which leaves the cap of scores out.
        attn_implementation = "eager"
    config = _make_config(family, overrides)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = auto.from_config(config, attn_implementation=attn_implementation)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.normal_(0.0, 0.25)
                else:
                    parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.to(dtype).eval()


def _make_config(family: str, overrides: dict[str, Any]) -> PretrainedConfig:
    if family not in _FAMILIES:
        return make_tiny_config(family, **overrides)
    values = {**_SIZES, **_FAMILIES[family], **overrides}
    if family == "gpt2":
        values |= {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
    return AutoConfig.for_model(family, **values)
