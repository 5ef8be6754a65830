"""The parts of a batch that go through the model one after the other: its partitions, as rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from treetrain.packing.batch import Batch
from treetrain.packing.packed_tree import PackedTree
from treetrain.packing.targets import TargetPart, TargetTensors
from treetrain.tree.prefix_tree import Ints


@dataclass(frozen=True, eq=False)
class BatchPart:
    """A partition of a batch, or the whole of it, as one packed row.

    Attributes:
        packed: the row; the tree's tokens before it are the partition's ancestors.
        places: packed index in the batch of each token of the row, [T] int64.
        part: the batch's targets whose predictors stand in the row.
    """

    packed: PackedTree
    places: Ints
    part: TargetPart

    @cached_property
    def target_tensors(self) -> TargetTensors:
        """`part.targets` on the row's device."""
        return self.part.targets.tensors(self.packed.device)

    def nodes(self, batch: Batch) -> Tensor:
        """Node of the batch's tree that holds each token of the row, [T] int64, on its device."""
        return torch.tensor(batch.tree.token_nodes[self.places], device=self.packed.device)


def whole_batch(batch: Batch, *, untrained: bool = False) -> BatchPart:
    """Take a batch as its only part.

    Args:
        batch: the batch.
        untrained: whether the part's targets are `batch.all_targets`.

    Returns:
        The part; its row is `batch.packed` itself.
    """
    targets = batch.all_targets if untrained else batch.targets
    part = TargetPart(
        targets=targets,
        places=np.arange(len(targets), dtype=np.int64),
        edges=np.arange(len(targets.edge_targets), dtype=np.int64),
    )
    return _WholeBatch(
        packed=batch.packed,
        places=np.arange(batch.num_tokens, dtype=np.int64),
        part=part,
        batch=batch,
        untrained=untrained,
    )


@dataclass(frozen=True, eq=False)
class _WholeBatch(BatchPart):
    """A batch as its only part; tensors that the batch keeps are not made again."""

    batch: Batch
    untrained: bool

    @cached_property
    def target_tensors(self) -> TargetTensors:
        return self.batch.all_target_tensors if self.untrained else self.batch.target_tensors
