"""Forward and backward passes over the partitions of a batch, depth-first, each token once.

Parents run forward before their descendants and backward after them; what a partition holds is
freed as soon as its own backward pass is done, so that one path of partitions is alive at a time.
What the loss is made of is the caller's affair.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from treetrain.models.gateways import Gateways
from treetrain.models.prepared import PreparedModel
from treetrain.packing.gateway import LayerGateway, LayerStore
from treetrain.packing.joined_parts import JoinedParts
from treetrain.packing.packed_tree import PackedTree
from treetrain.packing.parts import BatchPart
from treetrain.partitioning.modes import Mode
from treetrain.partitioning.offload import saved_on_host

#: Loss of a part from its hidden states [T, C], a scalar.
Evaluate = Callable[[int, Tensor], Tensor]

#: What a part, or several joined, keep for their descendants, by attention module.
Stores = dict[nn.Module, LayerStore]


@dataclass(eq=False)
class _Open:
    """A partition whose descendants are running.

    Attributes:
        stores: its keys and values by attention module; empty where nobody reads them.
        hidden: its hidden states with their graph; None where they are computed again.
    """

    stores: Stores
    hidden: Tensor | None


class Passes:
    """The passes over the partitions of a batch.

    Args:
        prepared: handle of the model.
        parts: the partitions as rows, parents before their descendants.
        parents: partition that each hangs from, -1 for none.
        modes: what each partition does with its activations while its descendants run; None: all
            keep them.
        joined: parts that compute again and run their first pass as one row.
        on_forward: called after the forward pass of a part that its backward pass will use, with
            the index of the part.
    """

    def __init__(
        self,
        prepared: PreparedModel,
        parts: Sequence[BatchPart],
        parents: Sequence[int],
        *,
        modes: Sequence[Mode] | None = None,
        joined: Sequence[JoinedParts] = (),
        on_forward: Callable[[int], None] = lambda part: None,
    ) -> None:
        self._prepared = prepared
        self._parts = parts
        self._parents = parents
        self._modes: list[Mode] = ["keep"] * len(parts) if modes is None else list(modes)
        self._joined = {row.kept[0][0]: row for row in joined}
        self._on_forward = on_forward
        self._has_children = [False] * len(parts)
        for parent in parents:
            if parent >= 0:
                self._has_children[parent] = True
        self._open: dict[int, _Open] = {}
        #: What joined parts that are not open yet have kept.
        self._recorded: dict[int, Stores] = {}
        self._is_checked = False
        self.computed_tokens = 0

    def run(self, evaluate: Evaluate, wanted: Sequence[bool]) -> None:
        """Run forward and backward passes.

        Args:
            evaluate: gives the loss of a part, with gradients; called once for each wanted part,
                right before its backward pass.
            wanted: whether each part, or one below it, has a loss; others do not run.
        """
        path: list[int] = []
        for part, parent in enumerate(self._parents):
            while path and path[-1] != parent:
                self._backward(path.pop(), evaluate)
            if not wanted[part]:
                # Its descendants are not wanted either, and find no parent on the path.
                path.append(part)
                continue
            self._open_part(part)
            path.append(part)
        while path:
            self._backward(path.pop(), evaluate)

    def run_forward(self, visit: Callable[[int, Tensor], None]) -> None:
        """Run forward passes only, without gradients.

        Args:
            visit: called with each part and its hidden states, [T, C].
        """
        path: list[int] = []
        with torch.no_grad():
            for part, parent in enumerate(self._parents):
                while path and path[-1] != parent:
                    self._open.pop(path.pop())
                self._open[part] = _Open(self._make_stores(part), None)
                visit(part, self._forward(part))
                path.append(part)
            self._open.clear()

    def _open_part(self, part: int) -> None:
        if part in self._joined:
            self._record(self._joined[part])
        if part in self._recorded:
            self._open[part] = _Open(self._recorded.pop(part), None)
            return
        self._open[part] = _Open(self._make_stores(part), None)
        mode = self._modes[part] if self._has_children[part] else "keep"
        if mode == "recompute":
            with torch.no_grad():
                self._forward(part)
            return
        with saved_on_host(self._prepared.model) if mode == "offload" else nullcontext():
            self._open[part].hidden = self._forward(part)
        self._on_forward(part)

    def _record(self, row: JoinedParts) -> None:
        """Run the first pass of parts that are joined."""
        self._recorded = {part: self._make_stores(part) for part, _ in row.kept}
        gateways = {
            module: LayerGateway(
                ancestors=self._find_ancestors(row.ancestors, module),
                kept=[(self._recorded[part][module], rows) for part, rows in row.kept],
                copy=True,
            )
            for module in self._prepared.layers
        }
        with torch.no_grad():
            self._compute(row.packed, gateways)

    def _backward(self, part: int, evaluate: Evaluate) -> None:
        if part not in self._open:
            return
        hidden = self._open[part].hidden
        self._open[part].hidden = None
        if hidden is None:
            hidden = self._forward(part)
            self._on_forward(part)
        loss = evaluate(part, hidden)
        roots: list[Tensor] = []
        gradients: list[Tensor | None] = []
        if loss.requires_grad:
            roots.append(loss)
            gradients.append(None)
        if hidden.requires_grad and self._has_children[part]:
            # What descendants gave back enters in the backward pass of attention, which has to run
            # in every layer even where the part's own loss reads nothing of it.
            roots.append(hidden)
            gradients.append(hidden.new_zeros(()).expand_as(hidden))
        if roots:
            # The engine runs where the caller stands; what autocast chose is in the graph already.
            with no_autocast(hidden.device):
                torch.autograd.backward(roots, gradients)
        del self._open[part]

    def _forward(self, part: int) -> Tensor:
        own, stores = self._parts[part], self._open[part].stores
        gateways = {
            module: LayerGateway(
                ancestors=self._find_ancestors(own.ancestors, module),
                kept=[(stores[module], own.kept)] if stores else [],
                copy=self._modes[part] != "keep",
            )
            for module in self._prepared.layers
        }
        return self._compute(own.packed, gateways)

    def _compute(self, packed: PackedTree, gateways: Gateways) -> Tensor:
        self.computed_tokens += packed.num_tokens
        if not self._is_checked:
            self._prepared.check_model()
            self._is_checked = True
        return self._prepared.hidden_states(packed, gateways, model_is_checked=True)

    def _make_stores(self, part: int) -> Stores:
        if not self._has_children[part]:
            return {}
        return {module: LayerStore() for module in self._prepared.layers}

    def _find_ancestors(
        self, ancestors: Sequence[tuple[int, slice]], module: nn.Module
    ) -> list[tuple[LayerStore, slice]]:
        return [(self._open[part].stores[module], rows) for part, rows in ancestors]


def no_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Leave an autocast region, for a backward pass: torch advises against one inside it.

    Args:
        device: where is computed.

    Returns:
        A context; it does nothing where there is no region.
    """
    if not torch.is_autocast_enabled(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)
