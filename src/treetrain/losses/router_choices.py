"""Which experts have the largest scores for each packed token of a batch, gathered part by part.

How often experts are chosen in the whole batch is a factor of the loss of each of its parts, so the
record is complete before the first part's loss is known.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from treetrain.losses.router_scores import Form, check_pool, choose_largest
from treetrain.losses.tree_sums import TreeSums
from treetrain.models.routers import Routing
from treetrain.packing.parts import BatchPart


class RouterChoices:
    """The experts of largest score of each packed token and router of a batch.

    Args:
        form: the form of the loss whose scores are meant.
        num_tokens: packed tokens T of the batch.

    Attributes:
        experts: experts of each packed token, [T, k] int32, by name of the router.
        widths: number of experts X, by name of the router.
    """

    def __init__(self, form: Form, num_tokens: int) -> None:
        self.form: Form = form
        self.experts: dict[str, Tensor] = {}
        self.widths: dict[str, int] = {}
        self._noted = np.zeros(num_tokens, bool)

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """Experts X and chosen k of each router."""
        return [(self.widths[name], found.shape[-1]) for name, found in self.experts.items()]

    def note(self, routing: Routing, part: BatchPart) -> None:
        """Add what the routers gave for a part.

        Args:
            routing: the record of the part's forward pass; its gradients are not needed.
            part: the part.

        Raises:
            ValueError: the record is of another row.
        """  # noqa: DOC502 (`Routing.of` raises)
        layers = routing.of(part.packed)
        device = part.packed.device
        places = torch.tensor(part.places, device=device)
        for layer in layers:
            chosen = choose_largest(layer, self.form, device).int()
            if layer.name not in self.experts:
                self.experts[layer.name] = chosen.new_zeros(len(self._noted), chosen.shape[-1])
                self.widths[layer.name] = layer.logits.shape[-1]
            self.experts[layer.name].index_copy_(0, places, chosen)
        self._noted[part.places] = True

    def count(self, name: str, sums: TreeSums) -> Tensor:
        """Count how often the tokens of each node have each expert.

        Args:
            name: name of the router.
            sums: sums of the batch's tree.

        Returns:
            The counts, each token once, [N, X] float64.

        Raises:
            ValueError: parts of the batch are missing.
        """
        if not self._noted.all():
            raise ValueError(
                "choices of experts must be noted for every part of the batch before the first "
                f"part's loss, got those of {int(self._noted.sum())} of {len(self._noted)} tokens; "
                "compute each part without gradients and call note_choices(routing, part)"
            )
        return sums.count_choices(self.experts[name].long(), self.widths[name])

    def count_all(self, sums: TreeSums) -> Tensor:
        """Count how often the tokens of each node have each expert in all routers together.

        Args:
            sums: sums of the batch's tree.

        Returns:
            The counts, each token once, [N, X] float64.

        Raises:
            ValueError: parts of the batch are missing.
            UnsupportedModelError: routers choose differently.
        """  # noqa: DOC502, DOC503 (the functions below raise)
        check_pool(self.sizes)
        first, *others = self.experts
        counts = self.count(first, sums)
        for name in others:
            counts += self.count(name, sums)
        return counts


def count_window_choices(choices: RouterChoices, sums: TreeSums) -> Tensor:
    """Count a batch's share of what form "batch" needs to know of a window.

    Args:
        choices: the choices of the whole batch.
        sums: sums of its tree.

    Returns:
        How often all routers and flat tokens have each expert, [X] float64; those of the batches of
        a window add.
    """
    return (sums.path_counts * choices.count_all(sums)).sum(0)
