"""One division of a tree: which of its partitions keep their activations, and what that costs."""

from __future__ import annotations

from typing import Literal

import numpy as np

from treetrain.partitioning.estimate import Flags, Walk
from treetrain.partitioning.memory_model import Bytes, MemoryModel
from treetrain.partitioning.modes import Mode
from treetrain.partitioning.plan import PartitionPlan, PlanCost
from treetrain.tree.metrics import ModelShape, measure_tree
from treetrain.tree.partition import Partitions
from treetrain.tree.prefix_tree import PrefixTree

Choice = Literal["auto", "keep", "recompute", "offload"]

#: Floating-point operations that an accelerator does in half precision while one byte moves to the
#: host or back: about 400 x 10^12 a second beside 25 x 10^9 bytes.
FLOPS_PER_BYTE = 16_000


class Candidate:
    """One division of a tree, and the modes that it may take.

    Args:
        partitions: the division.
        model: the model's memory.
        mode: what is asked for, "auto" for a choice.
        accumulating: whether parameters have gradients before.
    """

    def __init__(
        self, partitions: Partitions, model: MemoryModel, *, mode: Choice, accumulating: bool
    ) -> None:
        self.partitions = partitions
        self._model = model
        self._mode = mode
        self._walk = Walk(partitions, model, accumulating=accumulating)
        self._recomputing = _count_forward(partitions, model.shape)
        self._moving = 2 * model.activations.at(partitions.sizes)
        inner = self._walk.is_inner
        self._keeps = ~inner if mode in ("recompute", "offload") else np.ones_like(inner)

    @property
    def least(self) -> int:
        """Bytes below which no modes fit."""
        return self._walk.peak(self._keeps if self._mode != "auto" else ~self._walk.is_inner)

    def fits_keeping(self, memory: int) -> bool:
        """Say whether every partition may do what is asked for first.

        Args:
            memory: bytes.

        Returns:
            Whether that fits.
        """
        return self._walk.peak(self._keeps) <= memory

    def work(self, memory: int) -> float:
        """Count what the modes for a memory cost beside the undivided step.

        Args:
            memory: bytes, `least` or more.

        Returns:
            Floating-point operations.
        """
        return float(self._prices[~self._choose(memory)].sum())

    @property
    def _prices(self) -> Bytes:
        """What it costs that a partition does not keep its activations, [P] operations."""
        if self._mode == "offload":
            return FLOPS_PER_BYTE * self._moving
        if self._mode == "recompute" or self._model.on_host:
            return self._recomputing
        return np.minimum(self._recomputing, FLOPS_PER_BYTE * self._moving)

    def _choose(self, memory: int | None) -> Flags:
        """Which partitions keep their activations: from the root down as few as may not.

        What a partition gives up is gone from all moments below it, which follow it as one
        interval; afterwards those take back what turns out to fit, the deepest first.
        """
        if memory is None or self._mode != "auto" or self.fits_keeping(memory):
            return self._keeps
        kept = self._keeps.copy()
        moments, savings = self._walk.moments(kept), self._walk.savings()
        ends = self.partitions.descendant_ends
        inner = np.flatnonzero(self._walk.is_inner & (savings > 0))
        for place in inner.tolist():
            below = slice(place + 1, int(ends[place]))
            if self._walk.total(float(moments[below].max())) > memory:
                kept[place] = False
                moments[below] -= savings[place]
        for place in inner[::-1].tolist():
            below = slice(place + 1, int(ends[place]))
            if not kept[place] and (
                self._walk.total(float(moments[below].max() + savings[place])) <= memory
            ):
                kept[place] = True
                moments[below] += savings[place]
        return kept if self._walk.peak(kept) <= memory else ~self._walk.is_inner

    def plan(self, memory: int | None) -> PartitionPlan:
        """Make the plan.

        Args:
            memory: bytes that its peak shall not exceed, which they can be; None: no limit.

        Returns:
            The plan.
        """
        kept = self._choose(memory)
        is_moved = np.zeros_like(kept)
        if self._mode == "offload":
            is_moved = ~kept
        elif self._mode == "auto" and not self._model.on_host:
            is_moved = ~kept & (FLOPS_PER_BYTE * self._moving < self._recomputing)
        again = ~kept & ~is_moved
        modes: list[Mode] = [
            "keep" if keeps else "offload" if moves else "recompute"
            for keeps, moves in zip(kept.tolist(), is_moved.tolist(), strict=True)
        ]
        whole = _count_step(self.partitions.tree, self._model)
        cost = PlanCost(
            relative=1 + float(self._recomputing[again].sum()) / whole if whole else 1.0,
            recomputed_tokens=int(self.partitions.sizes[again].sum()),
            moved_bytes=round(float(self._moving[is_moved].sum())),
        )
        estimate = self._walk.explain(kept, modes=modes)
        return PartitionPlan(self.partitions, tuple(modes), estimate, cost)


def _count_forward(partitions: Partitions, shape: ModelShape) -> Bytes:
    """Floating-point work of each partition's forward pass, [P]: 2 P + 4 L H d D for each token."""
    tree = partitions.tree
    lengths = tree.node_lengths.astype(np.float64)
    pairs = lengths * (2 * tree.depth_starts + tree.node_lengths + 1) / 2
    width = shape.layers * shape.heads * shape.head_size
    work = 2 * shape.parameters * lengths + 4 * width * pairs
    total = np.zeros(partitions.num_partitions)
    np.add.at(total, partitions.node_partitions, work)
    return total


def _count_step(tree: PrefixTree, model: MemoryModel) -> float:
    """Floating-point work of the undivided step, as `flop_bound` counts it."""
    shape = model.shape
    for_parameters, for_attention = (8, 18) if model.checkpointing else (6, 14)
    width = shape.layers * shape.heads * shape.head_size
    pairs = measure_tree(tree).attention_pairs_tree
    return float(
        for_parameters * shape.parameters * tree.num_tokens + for_attention * width * pairs
    )
