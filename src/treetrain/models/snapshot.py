"""What a model was when it was prepared; changed afterwards, it would go unchecked and is refused.

Parameters may change, and adapters inside the decoder may come and go.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn
from transformers import PreTrainedModel

from treetrain.models.attached import Attached, check_attached, read_attached
from treetrain.models.before_head import BeforeHead
from treetrain.models.head import Head

#: Config values that `prepare` acts on.
SETTINGS = (
    "sliding_window",
    "attention_chunk_size",
    "layer_types",
    "final_logit_softcapping",
    "logit_scale",
    "logits_scaling",
    "is_causal",
)


@dataclass(frozen=True, eq=False)
class Snapshot:
    """What `prepare` has acted on, beside parameters; made by `take_snapshot`.

    Attributes:
        parts: the modules around the decoder's layers, in their order.
        settings: config values by name.
        attached: hooks, forwards put in place and marks, by module.
    """

    parts: list[nn.Module]
    settings: dict[str, object]
    attached: Attached

    def check(self, now: Snapshot, name: str) -> None:
        """Refuse a model that is another one than it was.

        Args:
            now: what it is now.
            name: its class, for the message.

        Raises:
            ValueError: a part was replaced, a config value or what is attached has changed.
        """  # noqa: DOC503 (check_attached raises too)
        if now.parts != self.parts:
            raise ValueError(
                f"parts of {name} beside its decoder's layers were replaced; call prepare(model) "
                "again"
            )
        if now.settings != self.settings:
            changed = [key for key in SETTINGS if now.settings[key] != self.settings[key]]
            raise ValueError(f"config.{changed[0]} was changed; call prepare(model) again")
        check_attached(self.attached, now.attached)


def take_snapshot(
    model: PreTrainedModel,
    decoder: nn.Module,
    attention: Iterable[nn.Module],
    *,
    head: Head,
    before_head: BeforeHead,
) -> Snapshot:
    """Note what a model is.

    Args:
        model: the model.
        decoder: the part of it that returns hidden states.
        attention: its attention modules.
        head: its head.
        before_head: the way of hidden states to the head.

    Returns:
        What can be compared with another snapshot of it.
    """
    inside = {*decoder.modules(), *head.layer.modules()} - {decoder, head.layer}
    config = model.config.get_text_config()
    called = {"decoder": decoder, "output layer": head.layer}
    if before_head.module is not None:
        for name, child in model.named_children():
            modules = set(child.modules())
            if before_head.module in modules and decoder not in modules:
                called[name] = child
    return Snapshot(
        parts=[part for part in model.modules() if part not in inside],
        settings={name: copy.copy(getattr(config, name, None)) for name in SETTINGS},
        attached=read_attached(called, attention),
    )
