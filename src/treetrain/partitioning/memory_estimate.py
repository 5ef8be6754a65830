"""What is in memory at the worst moment of a step, by its parts; `estimate` finds the moment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MemoryEstimate:
    """What lives at the worst moment of a step, in bytes of the device; the parts add up to it.

    Attributes:
        peak_bytes: all of it.
        weights: parameters and buffers.
        gradients: gradients of parameters.
        optimizer: states of the optimiser.
        activations: what forward passes have kept, of the partition at hand and of its ancestors.
        keys_values: keys and values that descendants read, beside the activations.
        accumulators: gradients that descendants gave back.
        working: what forward and backward pass, or the optimiser's step, hold for a while.
        head: what the head holds.
        host_bytes: activations in the host's memory, at their most; no part of the peak.
        partition: the partition of that moment; -1 for the optimiser's step.
    """

    peak_bytes: int
    weights: int
    gradients: int
    optimizer: int
    activations: int = 0
    keys_values: int = 0
    accumulators: int = 0
    working: int = 0
    head: int = 0
    host_bytes: int = 0
    partition: int = -1

    @property
    def parts(self) -> dict[str, int]:
        """The parts of the peak by name."""
        names = ("weights", "gradients", "optimizer", "activations", "keys_values")
        names += ("accumulators", "working", "head")
        return {name: getattr(self, name) for name in names}
