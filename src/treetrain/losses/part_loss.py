"""A part's share of a loss, with what statistics of the whole batch are made of."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from treetrain.packing.parts import BatchPart
from treetrain.tree.prefix_tree import Ints


@dataclass(frozen=True, eq=False)
class PartLoss:
    """A part's share of a loss. Shares add, with `+`, to that of the batch.

    Attributes:
        loss: the share, a scalar with gradients, losses of routers included; one that hangs on
            nothing requires no gradient.
        targets: number of trained edges of the part, each sequence's own counted.
        sums: sums over these edges, without gradients, by name of the statistic; none without them.
        routers: "load_balancing" and "router_z", the part's shares of these losses, without
            gradients; empty where the routers have no loss.
    """

    loss: Tensor
    targets: int
    sums: dict[str, Tensor]
    routers: dict[str, Tensor] = field(default_factory=dict[str, Tensor])

    @property
    def statistics(self) -> dict[str, Tensor]:
        """Means over the trained edges, and losses of the routers."""
        return {name: total / self.targets for name, total in self.sums.items()} | self.routers

    def __add__(self, other: PartLoss) -> PartLoss:
        return PartLoss(
            loss=self.loss + other.loss,
            targets=self.targets + other.targets,
            sums=_add(self.sums, other.sums),
            routers=_add(self.routers, other.routers),
        )


def find_trained(part: BatchPart) -> tuple[Ints, Tensor]:
    """Find the trained edges of a part: those that have a weight and a target.

    Args:
        part: the part.

    Returns:
        Which of the batch's flat edges they are, [n] int64 on the host, and the target of each
        among those of the part, [n] int64 on the part's device.
    """
    own = part.part.targets
    trained = np.flatnonzero((own.edge_weights != 0) & (own.edge_targets >= 0))
    places = torch.tensor(own.edge_targets[trained], device=part.packed.device)
    return part.part.edges[trained], places


def sum_statistics(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Sum numbers of edges.

    Args:
        values: numbers of each edge, [n], by name.

    Returns:
        Their sums, without gradients; none where there are no edges.
    """
    return {name: value.detach().sum() for name, value in values.items() if value.numel()}


def _add(some: dict[str, Tensor], others: dict[str, Tensor]) -> dict[str, Tensor]:
    names = some | others
    return {
        name: some[name] + others[name] if name in some and name in others else names[name]
        for name in names
    }
