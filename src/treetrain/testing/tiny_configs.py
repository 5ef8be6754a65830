"""Tiny configs of any model type that transformers knows, so small that their features bite.

Sizes are given by what a config's values are called, not by model type. Windows, chunks and choices
of tokens become shorter than a tree of a few dozen tokens, and whatever draws at random is off.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from transformers import CONFIG_MAPPING, PretrainedConfig

#: Sizes by name, the first pattern that matches counts.
_SIZES: tuple[tuple[str, int], ...] = (
    (r"(\w*_)?vocab(_size)?(_per_layer_input|_base)?|n_words", 64),
    (r"(pad_token_id|pad_index)", 0),
    (r"(bos_token_id|bos_index)", 1),
    (r"(eos_token_id|eos_index|sep_token_id|forced_eos_token_id|decoder_start_token_id)", 2),
    (r".*(image|audio|video|vision|boi|eoi|boa|eoa|mask|cls|unk)\w*_(token_)?(id|index)", 3),
    (r"(num_|n_|decoder_|encoder_|num_decoder_|num_encoder_)?(hidden_)?layers?", 4),
    (r"\w*(key_value|kv)_heads", 2),
    (r"\w*(attention_heads|num_heads|n_heads?)", 4),
    (r"(head_dim|attention_head_size|attention_head_dim|global_head_dim|d_kv|swa_head_dim)", 8),
    (r"qk_nope_head_dim", 8),
    (r"qk_rope_head_dim", 4),
    (r"(swa_)?v_head_dim", 6),
    (r"(qk_head_dim|index_head_dim)", 12),
    (r"rotary_dim", 4),
    (r"(q|kv|o)_lora_rank", 16),
    (r"\w*(moe|expert|shared|mlp_only)\w*(intermediate|hidden|ffn)\w*size\w*", 24),
    (
        r"\w*(intermediate|inner|feed_forward|ffn_hidden)_(size|dim)\w*|n_inner|\w*ffn_dim|d_ff|d_inner"
        r"|dim_ff|dff|ffn_hidden_size",
        48,
    ),
    (
        r"(hidden_size|d_model|n_embd|embed_dim|emb_dim|dim|embedding_size|word_embed_proj_dim"
        r"|input_embedding_size|output_embedding_size|hidden_size_per_layer_input|hidden_dim|model_dim)",
        32,
    ),
    (r"(num_experts|num_local_experts|n_routed_experts|num_routed_experts|moe_num_experts)", 8),
    (r"(num_experts_per_tok|num_experts_per_token|moe_k|moe_topk|top_k_experts|moe_top_k)", 2),
    (r"(n_shared_experts|num_shared_experts|moe_num_shared_experts)", 1),
    (r"n_group", 2),
    (r"topk_group", 1),
    (r"(first_k_dense_replace|moe_layer_start_index)", 1),
    (
        r"(sliding_window|attention_chunk_size|sliding_window_size|local_attention|attention_window"
        r"|window_size|local_attention_window_len)",
        4,
    ),
    (r"(index_topk|indexer_budget|index_topk_tokens)", 4),
    (r"(index_n_heads|indexer_n_heads)", 2),
    (r"(sliding_window_pattern|full_attention_interval|global_attn_every_n_layers)", 2),
    (
        r"(max_position_embeddings|n_positions|n_ctx|max_target_positions|max_seq_len"
        r"|original_max_position_embeddings)",
        512,
    ),
    (r"type_vocab_size", 2),
)
#: Values that a config may leave at None and a model then does not derive from others.
_WITHOUT_DEFAULT = frozenset(
    [
        "num_key_value_heads",
        "head_dim",
        "pad_token_id",
        "sliding_window",
        "num_experts_per_tok",
        "n_routed_experts",
        "n_shared_experts",
        "n_group",
        "topk_group",
    ]
)
_ROTARY = {"rope_type": "default", "rope_theta": 10000.0}
#: What patterns cannot say: values that have to agree with others, or that have no size.
_SPECIAL: dict[str, dict[str, Any]] = {
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0}},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "reformer": {"axial_pos_embds": False},
    "xmod": {"default_language": "en_XX"},
    "roc_bert": {"pronunciation_embed_dim": 32, "shape_embed_dim": 32},
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": _ROTARY, "sliding_attention": _ROTARY}
    },
    "zaya": {"num_experts_per_tok": 1},
    "mamba2": {"num_heads": 8, "head_dim": 8},
    "nemotron_h": {"mamba_num_heads": 8, "mamba_head_dim": 8, "ssm_state_size": 8, "n_groups": 1},
    "bailing_hybrid": {"num_experts_per_tok": 1},
    "modernbert-decoder": {"global_attn_every_n_layers": 2},
}
#: Latent attention has a key for each query head, and rotates a part of its own.
_LATENT = {"num_key_value_heads": 4, "head_dim": 4}
_PATTERNS = tuple((re.compile(pattern), size) for pattern, size in _SIZES)
_RANDOM = re.compile(r"\w*(drop|pdrop|jitter|dropout)\w*")


def make_tiny_config(model_type: str, **overrides: Any) -> PretrainedConfig:
    """Make a tiny config of a model type.

    Args:
        model_type: a name in transformers' `CONFIG_MAPPING`.
        **overrides: values in place of the tiny ones; for a composed config, of its text part too.

    Returns:
        The config.

    Raises:
        KeyError: if transformers knows no such type.

    Example:
        >>> config = make_tiny_config("llama")
        >>> config.hidden_size, config.num_hidden_layers
        (32, 4)
    """  # noqa: DOC502 (the mapping raises)
    config_class = CONFIG_MAPPING[model_type]
    return config_class(**_tiny_values(config_class, overrides))


def _tiny_values(
    config_class: type[PretrainedConfig], overrides: Mapping[str, Any]
) -> dict[str, Any]:
    defaults = config_class()
    parts: Mapping[str, Any] = getattr(defaults, "sub_configs", {})
    values: dict[str, Any] = {}
    for name, default in defaults.to_dict().items():
        if name in parts:
            part = getattr(defaults, name)
            if part is not None:
                values[name] = _tiny_values(type(part), overrides)
        elif (tiny := _tiny_value(name, default)) is not None:
            values[name] = tiny
    if getattr(defaults, "num_kv_shared_layers", 0):
        values["num_kv_shared_layers"] = 2
    if "is_decoder" in defaults.to_dict() and not getattr(defaults, "is_encoder_decoder", False):
        values["is_decoder"] = True
    known = set(defaults.to_dict()) | set(config_class.attribute_map)
    if "kv_lora_rank" in known:
        values |= {name: value for name, value in _LATENT.items() if name in known}
    values |= _SPECIAL.get(config_class.model_type, {})
    return values | {name: value for name, value in overrides.items() if name in known}


def _tiny_value(name: str, default: Any) -> Any:
    if isinstance(default, float) and _RANDOM.fullmatch(name):
        return 0.0
    if isinstance(default, bool) or not isinstance(default, int | None):
        return None
    # A value of None stands for one derived from others, except where it switches something on.
    if default is None and name not in _WITHOUT_DEFAULT:
        return None
    return next((size for pattern, size in _PATTERNS if pattern.fullmatch(name)), None)
