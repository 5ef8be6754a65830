"""What a plan is: partitions of a tree, their modes, and what the step then holds and costs.

`planning` makes one for a given memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from treetrain.partitioning.memory_estimate import MemoryEstimate
from treetrain.partitioning.modes import Mode
from treetrain.tree.partition import Partitions


@dataclass(frozen=True)
class PlanCost:
    """What a partitioned step costs beside an undivided one.

    Attributes:
        relative: floating-point work over that of the undivided step; 1 where nothing is computed
            again.
        recomputed_tokens: tokens whose forward pass runs twice.
        moved_bytes: bytes of activations that go to the host's memory and come back, each way
            counted.
    """

    relative: float
    recomputed_tokens: int
    moved_bytes: int


@dataclass(frozen=True, eq=False)
class PartitionPlan:
    """How a tree goes through a model in partitions.

    Attributes:
        partitions: the partitions.
        modes: what each does with its activations while its descendants run; "keep" for those that
            none hangs from.
        estimate: what lives at the step's worst moment.
        cost: what the step costs.
    """

    partitions: Partitions
    modes: tuple[Mode, ...]
    estimate: MemoryEstimate
    cost: PlanCost

    @property
    def is_divided(self) -> bool:
        """Whether there is more than one partition."""
        return self.partitions.num_partitions > 1

    def __repr__(self) -> str:
        counts = {mode: self.modes.count(mode) for mode in get_args(Mode)}
        named = ", ".join(f"{count} {mode}" for mode, count in counts.items() if count)
        return (
            f"PartitionPlan({self.partitions!r}, {named}, peak {self.estimate.peak_bytes} bytes, "
            f"{self.cost.relative:.2f} times the work)"
        )
