"""Switching a model's attention implementation and giving back exactly what was there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from transformers import PreTrainedModel


def find_implementations(model: PreTrainedModel) -> list[tuple[object, str | None]]:
    """List the attention implementation of every config that a model's parts hold.

    Args:
        model: the model.

    Returns:
        Pairs of config and implementation name, each config once.
    """
    configs = {
        id(module.config): module.config
        for module in model.modules()
        if isinstance(module, PreTrainedModel)
    }
    return [(config, config._attn_implementation) for config in configs.values()]


def restore_implementations(implementations: list[tuple[object, str | None]]) -> None:
    """Give configs back the implementation they had.

    Args:
        implementations: what `find_implementations` returned.
    """
    for config, name in implementations:
        # The public setter would also set sub-configs, each of which has its own entry.
        config._attn_implementation_internal = name  # pyright: ignore[reportAttributeAccessIssue]


@contextmanager
def using_implementation(model: PreTrainedModel, name: str) -> Iterator[None]:
    """Use an attention implementation for a while.

    Args:
        model: the model.
        name: a name registered with transformers.

    Yields:
        Nothing.
    """
    before = find_implementations(model)
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        restore_implementations(before)
