"""Factors of a loss, laid out on the host for a whole batch and taken from there part by part."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from treetrain.losses.reductions import name_sample
from treetrain.packing.batch import Batch
from treetrain.packing.targets import Floats
from treetrain.tree.prefix_tree import Ints


@dataclass(frozen=True, eq=False)
class Factors:
    """What terms of a batch's loss are multiplied by.

    Attributes:
        batch: the batch, for messages.
        values: the factors, [n] float64.
        name: what they are made of, for messages.
        places: index into `values` of each flat edge, or -1, [E]; None: the values are those of
            the flat edges.
    """

    batch: Batch
    values: Floats
    name: str
    places: Ints | None = None

    @cached_property
    def largest(self) -> float:
        """The largest absolute value, 0 of none; nan where there is one."""
        return float(np.abs(self.values).max(initial=0.0))

    def check(self, dtype: torch.dtype) -> None:
        """Refuse factors that the loss's dtype cannot hold.

        A factor that vanishes beside larger ones is lost in rounding anyway; refused is what
        overflows, and what vanishes altogether.

        Args:
            dtype: dtype of the loss.

        Raises:
            ValueError: the largest of the whole batch is too large or too small; names the sample.
        """
        limits = torch.finfo(dtype)
        if self.largest == 0 or limits.tiny <= self.largest <= limits.max:
            return
        raise ValueError(
            f"{self.name} must stay between {limits.tiny:.2g} and {limits.max:.2g} for a loss in "
            f"{dtype} once the reduction has scaled them, got {self.largest:.3g} at most, of "
            f"{name_sample(self.batch, self._find_owner())}; scale them, or the number that the "
            "reduction divides by"
        )

    def take(self, places: Ints, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Take some of them to a device.

        Args:
            places: which ones, [m] int64.
            dtype: dtype of the loss.
            device: where the tensor shall live.

        Returns:
            The factors, [m].
        """
        return torch.tensor(self.values[places], dtype=dtype, device=device)

    def _find_owner(self) -> int:
        """Sequence of the largest."""
        targets = self.batch.targets
        edge = place = int(np.abs(self.values).argmax())
        if self.places is not None:
            sharing = np.flatnonzero(self.places == place)
            edge = int(sharing[np.abs(targets.edge_weights[sharing]).argmax()])
        return int(np.searchsorted(targets.sequence_offsets, edge, side="right")) - 1
