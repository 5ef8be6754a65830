"""Walking a partitioned step depth-first: what lives at its worst moment, by its parts.

A moment is the end of one partition: its forward pass with gradients (the first one, or the one
that is computed again), the head, its backward pass. Everything in between holds less. Meanwhile
its ancestors hold the gradients of keys and values that came back so far, counted as if all had,
and what their modes say:

========== ======================== ==========================================
mode       activations              keys and values that descendants read
========== ======================== ==========================================
keep       on the device            parts of the activations; copies where they
                                    stand in several places of the row
recompute  none, computed again     copies
offload    in the host's memory     copies
========== ======================== ==========================================
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from treetrain.partitioning.memory_estimate import MemoryEstimate
from treetrain.partitioning.memory_model import Bytes, MemoryModel
from treetrain.partitioning.modes import Mode, check_modes
from treetrain.tree.partition import Partitions
from treetrain.tree.prefix_tree import Ints

Flags = NDArray[np.bool_]


def estimate_memory(
    partitions: Partitions,
    modes: Sequence[Mode],
    memory_model: MemoryModel,
    *,
    accumulating: bool = False,
) -> MemoryEstimate:
    """Estimate the peak of a step over partitions, the optimiser's own step included.

    Every token is taken to have a target.

    Args:
        partitions: the partitions.
        modes: "keep", "recompute" or "offload" of each.
        memory_model: the model's memory.
        accumulating: whether parameters have gradients before, from other batches of the step.

    Returns:
        The estimate.

    Raises:
        ValueError: there is not one mode for each partition, one is unknown, a partition that none
            hangs from does not keep, or one offloads where the device is the host.
    """  # noqa: DOC502 (the check raises)
    walk = Walk(partitions, memory_model, accumulating=accumulating)
    check_plan_modes(walk.is_inner, modes, memory_model)
    return walk.explain(np.array([mode == "keep" for mode in modes], bool), modes=modes)


def check_plan_modes(is_inner: Flags, modes: Sequence[Mode], memory_model: MemoryModel) -> None:
    """Refuse modes that a plan cannot have.

    Args:
        is_inner: whether others hang from each partition, [P].
        modes: mode of each.
        memory_model: the model's memory, for its device.

    Raises:
        ValueError: there is not one mode for each partition, one is unknown, a partition that none
            hangs from does not keep, or one offloads where the device is the host.
    """
    for place, mode in enumerate(check_modes(modes, len(is_inner))):
        if mode != "keep" and not is_inner[place]:
            raise ValueError(
                f"modes[{place}] must be 'keep' for a partition that none hangs from, got {mode!r}"
            )
        if mode == "offload" and memory_model.on_host:
            raise ValueError(
                f"modes[{place}] must be 'keep' or 'recompute' on {memory_model.device}, whose "
                "memory is the host's, got 'offload'"
            )


class Walk:
    """The moments of a step over P partitions, for any modes.

    Args:
        partitions: the partitions.
        memory_model: the model's memory.
        accumulating: as in `estimate_memory`.
    """

    def __init__(
        self, partitions: Partitions, memory_model: MemoryModel, *, accumulating: bool = False
    ) -> None:
        self._model = memory_model
        self._ends = partitions.descendant_ends
        self._gateways = memory_model.gateway * partitions.gateway_sizes.astype(np.float64)
        self._sizes = partitions.sizes
        self._numbers = np.arange(partitions.num_partitions)
        #: Whether others hang from each partition, [P].
        self.is_inner: Flags = self._ends > self._numbers + 1
        # A step's gradients come into being in the first backward pass, beside those from before.
        self._first = int(np.argmin(self.is_inner)) if len(self.is_inner) else -1
        self._before = memory_model.gradients if accumulating else 0
        read, is_scattered = _count_read(partitions)
        self._copies = (memory_model.key_values * read).astype(np.float64)
        self._returned = (memory_model.accumulators * read).astype(np.float64)
        self._saved = memory_model.activations.at(self._sizes)
        # What a partition holds while others run below it, when it keeps and when it does not.
        self._held_kept = self._saved + np.where(is_scattered, self._copies, 0) + self._returned
        self._held_else = self._copies + self._returned
        self._heads, self._bodies = self._find_peaks()
        self._own = self._copies + self._returned + np.maximum(self._heads, self._bodies)

    def _find_peaks(self) -> tuple[Bytes, Bytes]:
        """What each partition's head, and the rest of its passes, take with gradients, [P]."""
        made = np.full(len(self._sizes), float(self._model.gradients))
        bodies = self._model.body_peak(self._sizes, first=False)
        if self._first >= 0:
            made[self._first] = 0.0
            alone = self._sizes[self._first : self._first + 1]
            bodies[self._first] = self._model.body_peak(alone, first=True)[0]
        heads = self._model.head_peak(self._sizes) + made
        return heads + self._before, bodies + self._gateways + self._before

    def moments(self, is_kept: Flags) -> Bytes:
        """What lives at each partition's moment beside weights and the optimiser's states.

        Args:
            is_kept: whether each partition keeps its activations, [P].

        Returns:
            Bytes, [P].
        """
        held = np.where(is_kept, self._held_kept, self._held_else)
        return self._own + self._sum_above(held)

    def savings(self) -> Bytes:
        """What lives less below each partition that does not keep its activations, [P] bytes."""
        return self._held_kept - self._held_else

    def _sum_above(self, values: Bytes) -> Bytes:
        """Sum of values over all ancestors of each partition, [P]."""
        steps = np.zeros(len(values) + 1)
        # Below a partition are those from the next one to its end.
        steps[1:] += values
        np.add.at(steps, self._ends, -values)
        return np.cumsum(steps)[:-1]

    def peak(self, is_kept: Flags) -> int:
        """The most that lives on the device at once.

        Args:
            is_kept: whether each partition keeps its activations, [P].

        Returns:
            Bytes.
        """
        return self.total(float(self.moments(is_kept).max(initial=0.0)))

    def total(self, moment: float) -> int:
        """The most that lives on the device at once, from the worst of the moments.

        Args:
            moment: the highest of `moments`, bytes.

        Returns:
            Bytes.
        """
        return self._model.weights + self._model.optimizer + math.ceil(max(moment, self._update))

    @property
    def _update(self) -> float:
        """What lives in the optimiser's step beside weights and its states, bytes."""
        return float(self._model.gradients + self._model.optimizer_working)

    def explain(self, is_kept: Flags, *, modes: Sequence[Mode]) -> MemoryEstimate:
        """Say what lives at the worst moment.

        Args:
            is_kept: whether each partition keeps its activations, [P].
            modes: mode of each partition, for what is in the host's memory.

        Returns:
            The estimate.
        """
        moments = self.moments(is_kept)
        worst = int(moments.argmax()) if len(moments) else -1
        rest = "working"
        if worst < 0 or moments[worst] < self._update:
            worst, parts = -1, {"gradients": float(self._model.gradients)}
        else:
            parts = self._explain(worst, is_kept)
            rest = "head" if self._heads[worst] >= self._bodies[worst] else "working"
        peak = self.peak(is_kept)
        sizes = {"weights": self._model.weights, "optimizer": self._model.optimizer}
        sizes |= {name: round(size) for name, size in parts.items()}
        sizes[rest] = peak - sum(sizes.values())
        on_host = self._saved * np.array([mode == "offload" for mode in modes], bool)
        host_bytes = math.ceil((self._sum_above(on_host) + on_host).max(initial=0.0))
        return MemoryEstimate(peak_bytes=peak, partition=worst, host_bytes=host_bytes, **sizes)

    def _explain(self, place: int, is_kept: Flags) -> dict[str, float]:
        """The parts of a partition's moment, but for what the head or the passes hold."""
        above = (self._numbers < place) & (self._ends > place)
        kept = above & is_kept
        own, made = self._explain_own(place)
        held = np.where(is_kept, self._held_kept - self._saved, self._held_else) - self._returned
        return {
            "gradients": made + self._before,
            "activations": float(self._saved[kept].sum()) + own,
            "keys_values": float(held[above].sum() + self._copies[place]),
            "accumulators": float(self._returned[above].sum() + self._returned[place]),
        }

    def _explain_own(self, place: int) -> tuple[float, float]:
        """Activations of the partition itself and gradients of parameters at its worst."""
        saved = float(self._saved[place])
        is_first = place == self._first
        if self._heads[place] >= self._bodies[place]:
            return saved, 0.0 if is_first else float(self._model.gradients)
        phase = self._model.worst_phase(int(self._sizes[place]), first=is_first)
        live = float(phase.live.at(self._sizes[place]))
        return min(saved, live), float(phase.made if is_first else self._model.gradients)


def _count_read(partitions: Partitions) -> tuple[Ints, Flags]:
    """Tokens of each partition that descendants read, and whether they stand in several places."""
    tree, owners = partitions.tree, partitions.node_partitions
    parents = tree.parents
    # Whether another partition hangs from a node or from one below it in its own partition.
    is_read = np.zeros(tree.num_nodes, bool)
    crosses = (parents >= 0) & (owners != owners[parents])
    for node in range(tree.num_nodes - 1, -1, -1):
        parent = parents[node]
        if parent >= 0 and (is_read[node] or crosses[node]):
            is_read[parent] = True
    read = np.zeros(partitions.num_partitions, np.int64)
    np.add.at(read, owners[is_read], tree.node_lengths[is_read])
    rows = [partitions.own_nodes(number) for number in range(partitions.num_partitions)]
    order = np.concatenate(rows) if rows else np.zeros(0, np.int64)
    begins = is_read[order].copy()
    begins[1:] &= ~(is_read[order[:-1]] & (owners[order[1:]] == owners[order[:-1]]))
    places = np.bincount(owners[order[begins]], minlength=partitions.num_partitions)
    return read, places > 1
