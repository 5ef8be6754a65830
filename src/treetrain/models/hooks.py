"""The attention function that transformers calls, and the tree that reaches it.

The tree travels as a keyword of the model's forward pass, `prefix_tree`, which decoder layers hand
down to the attention function and which survives gradient checkpointing of both kinds. A call
without the keyword goes to the implementation that the model had before.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from treetrain.attention.api import tree_attention
from treetrain.errors import UnsupportedModelError
from treetrain.packing.gateway import LayerGateway
from treetrain.packing.packed_tree import PackedTree

#: Names under which the attention function is registered, by the implementation it stands in for.
#: transformers tests names for parts such as "sdpa" or "flash", so that ours hold none of them.
REGISTERED_NAMES = {"sdpa": "treetrain_over_fused", "eager": "treetrain_over_plain"}

#: Keywords of an attention call that do not change what it computes on a tree.
_HARMLESS_KEYWORDS = frozenset(
    {
        "cache",
        "cache_position",
        "is_causal",
        "layer_idx",
        "max_seqlen_k",
        "max_seqlen_q",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "past_key_values",
        "position_embeddings",
        "position_ids",
        "return_dict",
        # The mask says where a window is; see `probe`.
        "sliding_window",
        "use_cache",
    }
)


class TreeLostError(UnsupportedModelError):
    """The tree does not reach a model's attention as a keyword; a dense mask may."""


@dataclass(frozen=True)
class Layer:
    """What one attention layer computes.

    Attributes:
        backend: name of the attention backend.
        window: depth positions a query reads back, itself included; None for all.
        chunk: size of the blocks of depth positions that do not read each other; None for one
            block.
    """

    backend: str
    window: int | None
    chunk: int | None


@dataclass(eq=False)
class TreeCall:
    """One forward pass on a packed tree; the value of the keyword `prefix_tree`.

    Attributes:
        packed: the packed tree.
        layers: what each attention module of the model computes.
        gateways: the gateway of a partition in each attention module; None for a whole tree.
        running: whether the forward pass runs. Whoever runs it says when it has ended, so that
            what checkpointing computes again in the backward pass is not taken for a part of it.
        seen: `id` of the attention modules that received this call; torch.compile keeps numbers
            that are put into a set, and loses modules.
    """

    packed: PackedTree
    layers: dict[nn.Module, Layer]
    gateways: Mapping[nn.Module, LayerGateway] | None = None
    running: bool = True
    seen: set[int] = field(default_factory=set)

    def find_gateway(self, module: nn.Module) -> LayerGateway | None:
        """Find the gateway of an attention module.

        Args:
            module: a module that is about to attend.

        Returns:
            Its gateway; None for a whole tree.

        Raises:
            UnsupportedModelError: if it attends a second time in one forward pass.
        """
        if self.gateways is None:
            return None
        if self.running and id(module) in self.seen:
            raise UnsupportedModelError(
                f"{name_module(module)} attends several times in one forward pass, and partitions "
                "keep one set of keys and values for each module; train this model on trees that "
                "fit in one piece (a larger token budget), or on separate sequences"
            )
        return self.gateways[module]

    def check_complete(self) -> None:
        """Make sure that every attention layer saw the tree.

        Raises:
            TreeLostError: if one did not.
        """
        missed = [name_module(module) for module in self.layers if id(module) not in self.seen]
        if missed:
            raise TreeLostError(
                f"{len(missed)} of {len(self.layers)} attention layers did not receive the tree "
                f"(first: {missed[0]}); this model drops keywords between its layers and its "
                "attention"
            )


def name_module(module: nn.Module) -> str:
    """Name a module for messages.

    Args:
        module: an attention module.

    Returns:
        Its class and, where it has one, its layer index.
    """
    index = getattr(module, "layer_idx", None)
    return type(module).__name__ + ("" if index is None else f" of layer {index}")


def make_sentinel(device: torch.device) -> Tensor:
    """Make the mask that a tree call hands to the model.

    transformers returns a 4-D mask untouched, so that it builds none of its own and reads no
    packing into the depth positions.

    Args:
        device: where the model's inputs live.

    Returns:
        True, bool [1, 1, 1, 1].
    """
    return torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device)


def find_original(implementation: str, module: nn.Module) -> Callable[..., Any]:
    """Find the attention function that a module called before it was prepared.

    Args:
        implementation: transformers' name of the implementation.
        module: the attention module; "eager" is a function of the file that its forward stands in.

    Returns:
        The attention function.

    Raises:
        UnsupportedModelError: if the module's file has no eager attention function.
    """
    if implementation != "eager":
        return ALL_ATTENTION_FUNCTIONS[implementation]
    forward = inspect.unwrap(type(module).forward)
    function = getattr(forward, "__globals__", {}).get("eager_attention_forward")
    if function is None:
        raise UnsupportedModelError(
            f"{name_module(module)} has no eager_attention_forward beside it; "
            "load the model with attn_implementation='sdpa'"
        )
    return function


def register_attention() -> None:
    """Register the attention function with transformers, once per stood-in implementation."""
    for original, name in REGISTERED_NAMES.items():
        if name not in ALL_ATTENTION_FUNCTIONS.valid_keys():
            AttentionInterface.register(name, _stand_in(original))
            AttentionMaskInterface.register(name, AttentionMaskInterface()[original])


def _stand_in(original: str) -> Callable[..., Any]:
    def attend(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        prefix_tree: TreeCall | None = None,
        **keywords: Any,
    ) -> tuple[Tensor, Tensor | None]:
        if prefix_tree is None:
            function = find_original(original, module)
            return function(module, query, key, value, attention_mask, **keywords)
        return _attend_tree(
            module, query, key, value, attention_mask=attention_mask, call=prefix_tree, **keywords
        )

    return attend


# Attention over a tree is planned on the host, anew for each tree. Traced, a compiled layer would
# hold the plan of one tree and be compiled again for the next.
@torch.compiler.disable(
    reason="attention over a tree is planned on the host and stays outside graphs; compile "
    "without fullgraph=True"
)
def _attend_tree(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    attention_mask: Tensor | None,
    call: TreeCall,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    name = name_module(module)
    if module not in call.layers:
        raise UnsupportedModelError(
            f"{name} was not there when prepare(model) looked; prepare again"
        )
    if attention_mask is not None and attention_mask.shape != (1, 1, 1, 1):
        raise UnsupportedModelError(
            f"{name} got a mask of shape {list(attention_mask.shape)} in a tree call; the model "
            "builds a mask of its own, which would cut branches off; train it on separate sequences"
        )
    if dropout:
        raise UnsupportedModelError(
            f"{name} drops {dropout} of its attention weights; a shared token cannot be dropped "
            "differently for each sequence: set the dropout to 0 in the config or call model.eval()"
        )
    unknown = [
        key for key, value in others.items() if key not in _HARMLESS_KEYWORDS and value is not None
    ]
    if unknown:
        raise UnsupportedModelError(
            f"{name} hands {unknown} to its attention, which no backend computes on a tree; train "
            "this model on separate sequences"
        )
    layer = call.layers[module]
    device = query.device.type
    # The meta device, on which memory is measured, has no autocast.
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        # As autocast casts what transformers' own attention gets.
        dtype = torch.get_autocast_dtype(device)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    output = tree_attention(
        query,
        key,
        value,
        call.packed,
        backend=layer.backend,
        scale=scaling,
        window=layer.window,
        chunk=layer.chunk,
        softcap=softcap,
        sinks=s_aux,
        gateway=call.find_gateway(module),
    )
    call.seen.add(id(module))
    return output.transpose(1, 2), None
