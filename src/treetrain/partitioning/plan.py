"""Placeholder until the plan arrives from its branch."""

from __future__ import annotations

from dataclasses import dataclass

from treetrain.tree.partition import Partitions


@dataclass(frozen=True, eq=False)
class PartitionPlan:
    """Partitions and modes."""

    partitions: Partitions
    modes: tuple[str, ...]
