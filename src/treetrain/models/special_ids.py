"""Token ids that a model's configs give a role, which sequences made for a model do without."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

#: How the keys of a config end that give token ids a role.
_ROLES = ("_token_id", "_token_ids", "_token_index")


def find_special_ids(model: PreTrainedModel) -> set[int]:
    """Find the token ids that mean something to a model: padding, ends, pictures.

    Args:
        model: the model.

    Returns:
        The ids that its configs name; one key may name several.

    Example:
        >>> from treetrain.testing.models import make_tiny_model
        >>> sorted(find_special_ids(make_tiny_model("llama", eos_token_id=[2, 9])))
        [0, 1, 2, 9]
    """
    text = model.config.get_text_config()
    configs: list[Any] = [model.config, text, getattr(model, "generation_config", None)]
    special: set[int] = set()
    for config in configs:
        for name, value in ({} if config is None else config.to_dict()).items():
            if name.endswith(_ROLES):
                ids = value if isinstance(value, list | tuple) else [value]
                special.update(token for token in ids if isinstance(token, int))
    return special


def find_plain_ids(model: PreTrainedModel) -> list[int]:
    """Find the token ids that the model's configs give no role.

    Args:
        model: the model.

    Returns:
        The ids of its vocabulary without those of `find_special_ids`, ascending.
    """
    special = find_special_ids(model)
    vocabulary = model.config.get_text_config().vocab_size
    return [token for token in range(vocabulary) if token not in special]
