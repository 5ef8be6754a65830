"""What the routers of a mixture of experts decide, recorded while a packed tree runs.

`named_routers` finds the routers. What losses and counts are made of the record is the affair of
`losses.router`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from treetrain.errors import UnsupportedModelError
from treetrain.models.named_routers import find_routers
from treetrain.models.prepared import find_prepared
from treetrain.packing.packed_tree import PackedTree


@dataclass(frozen=True, eq=False)
class RouterOutput:
    """What one router gave for each packed token.

    Attributes:
        name: qualified name of the router in the model, for `model.get_submodule`.
        logits: logits of the X experts, [T, X], dtype of the router, with its graph.
        experts: the experts that compute the token, [T, k] int64.
    """

    name: str
    logits: Tensor
    experts: Tensor


@dataclass(eq=False)
class Routing:
    """The record of the last forward pass on a tree; made by `record_routing`.

    Attributes:
        packed: the packed tree that was computed; None before the first.
        layers: what each router gave, in the order in which they ran.
        lost_gradients: whether routers ran without gradients in a pass that has some, as reentrant
            checkpointing does.
    """

    packed: PackedTree | None = None
    layers: list[RouterOutput] = field(default_factory=list[RouterOutput])
    lost_gradients: bool = False

    def of(self, packed: PackedTree) -> list[RouterOutput]:
        """Give what the routers said about a tree.

        Args:
            packed: the packed tree.

        Returns:
            What each router gave.

        Raises:
            ValueError: the record is that of another tree, or of none.
        """
        if self.packed is not packed:
            found = "of no forward pass" if self.packed is None else f"of {self.packed!r}"
            raise ValueError(
                f"routing must be the record of the forward pass on {packed!r}, got one {found}; "
                "compute the loss of the same batch inside `with record_routing(model) as routing`"
            )
        return self.layers


@contextmanager
def record_routing(model: nn.Module) -> Iterator[Routing]:
    """Record what the routers decide in forward passes on trees inside the context.

    Plain calls are not recorded, nor what checkpointing computes again in the backward pass.

    Args:
        model: a prepared model.

    Yields:
        The record; filled by each forward pass on a tree, and of use after the context too. It
        holds the graph of the logits.

    Raises:
        UnsupportedModelError: the model has no router that transformers can name, is compiled, or
            has one that does not give logits and the experts it chose.

    Example:
        >>> from treetrain.losses.sft import sft_loss
        >>> from treetrain.models.prepare import prepare
        >>> from treetrain.packing.batch import pack
        >>> from treetrain.testing.models import make_tiny_model
        >>> model = make_tiny_model("qwen3_moe")
        >>> handle = prepare(model)
        >>> with record_routing(model) as routing:
        ...     loss = sft_loss(model, pack([[1, 2, 3, 4], [1, 2, 5]]), "token_mean")
        >>> routing.layers[0].name, list(routing.layers[0].logits.shape)
        ('model.layers.0.mlp.gate', [5, 6])
    """  # noqa: DOC502 (the functions below raise)
    prepared = find_prepared(model)
    if not prepared.layers:
        raise UnsupportedModelError(
            f"{type(prepared.model).__name__} takes trees as one dense mask, where routers are not "
            "recorded; prepare(model) with another backend, or leave the router's losses out"
        )
    recorder = _Recorder(type(model).__name__, find_routers(prepared.model, prepared.decoder))
    _check_uncompiled(prepared.decoder, type(model).__name__)
    handles = [
        prepared.decoder.register_forward_pre_hook(recorder.record_routing_begins, with_kwargs=True)
    ]
    handles += [
        router.register_forward_hook(recorder.record_routing_of_layer)
        for router in recorder.routers
    ]
    handles.append(prepared.decoder.register_forward_hook(recorder.record_routing_ends))
    try:
        yield recorder.routing
    finally:
        for handle in handles:
            handle.remove()


def _check_uncompiled(decoder: nn.Module, name: str) -> None:
    for module in decoder.modules():
        forward = vars(module).get("forward")
        if module._compiled_call_impl is not None or hasattr(forward, "_torchdynamo_orig_callable"):
            raise UnsupportedModelError(
                f"{name} is compiled ({type(module).__name__}), and compiled code runs past the "
                "hooks that record routers; do not compile the decoder, or leave the router's "
                "losses out"
            )


class _Recorder:
    """The hooks of one context; `attached` knows them by the beginning of their names."""

    def __init__(self, model: str, routers: dict[nn.Module, tuple[str, int]]) -> None:
        self.model = model
        self.routers = routers
        self.routing = Routing()
        self._running: PackedTree | None = None
        self._has_gradients = False
        self._are_probabilities: list[Tensor] = []

    def record_routing_begins(
        self, decoder: nn.Module, inputs: tuple[Any, ...], keywords: dict[str, Any]
    ) -> None:
        call = keywords.get("prefix_tree")
        self._running = None if call is None else call.packed
        if self._running is not None:
            self._has_gradients = torch.is_grad_enabled()
            self._are_probabilities = []
            self.routing.packed = None
            self.routing.layers = []
            self.routing.lost_gradients = False

    def record_routing_of_layer(self, router: nn.Module, inputs: Any, output: Any) -> None:
        if self._running is None:
            return
        name, index = self.routers[router]
        layers = self.routing.layers
        if any(layer.name == name for layer in layers):
            raise UnsupportedModelError(
                f"{name} of {self.model} routes more than once in one forward pass; leave the "
                "router's losses out"
            )
        layer = self._read(name, index, output, self._running.num_tokens)
        layers.append(layer)
        with torch.no_grad():
            sums = layer.logits.float().sum(-1)
            is_one = ((sums - 1).abs() < 1e-2).all() & (layer.logits >= 0).all()
        self._are_probabilities.append(is_one)
        if self._has_gradients and not torch.is_grad_enabled():
            self.routing.lost_gradients = True

    def record_routing_ends(self, decoder: nn.Module, inputs: Any, output: Any) -> None:
        if self._running is None:
            return
        seen = {layer.name for layer in self.routing.layers}
        missed = [name for name, _ in self.routers.values() if name not in seen]
        if missed:
            raise UnsupportedModelError(
                f"{len(missed)} of {len(self.routers)} routers of {self.model} did not run (first: "
                f"{missed[0]}): something computes their layers in another way, or the loss is "
                "compiled, which runs past the hooks that record them; do not compile it, or leave "
                "the router's losses out"
            )
        device = self._are_probabilities[0].device
        flags = torch.stack([flag.to(device) for flag in self._are_probabilities]).tolist()
        for layer, is_one in zip(self.routing.layers, flags, strict=True):
            if is_one:
                raise UnsupportedModelError(
                    f"{layer.name} of {self.model} gives probabilities as its logits, of which "
                    "another softmax would make a loss that is no load balancing; leave the "
                    "router's losses out"
                )
        self.routing.packed, self._running = self._running, None

    def _read(self, name: str, index: int, output: Any, rows: int) -> RouterOutput:
        parts: tuple[Any, ...] = output if isinstance(output, tuple) else (output,)
        place = index if isinstance(output, tuple) else 0
        logits = _rows(parts[place], rows) if place < len(parts) else None
        if logits is None or not logits.is_floating_point():
            raise UnsupportedModelError(
                f"{name} of {self.model} gives no logits of {rows} tokens where transformers says "
                "they are; leave the router's losses out"
            )
        chosen = [
            part
            for part in (_rows(part, rows) for part in parts)
            if part is not None and part.dtype in (torch.int64, torch.int32)
        ]
        if len(chosen) != 1:
            raise UnsupportedModelError(
                f"{name} of {self.model} does not give the experts it chose beside its logits "
                f"(its output holds {len(chosen)} integer tensors of {rows} rows, not one); leave "
                "the router's losses out"
            )
        return RouterOutput(name, logits, chosen[0].long())


def _rows(value: Any, rows: int) -> Tensor | None:
    """A tensor with one row per token, or None for anything else."""
    if not isinstance(value, Tensor) or value.dim() < 2:
        return None
    flat = value.flatten(0, -2)
    return flat if len(flat) == rows else None
