"""Choosing how a tree is cut and what its partitions do with their activations, for a given memory.

What is taken is, in this order: the largest capacity at which every partition can keep its
activations; the capacity at which least work is done twice, or moved to the host and back; and only
then capacities below `GOOD_CAPACITY`, since many small passes cost more time than activations that
are computed again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import get_args

from treetrain.errors import CapacityError, check_number, check_type
from treetrain.partitioning.candidate import Candidate, Choice
from treetrain.partitioning.memory_model import MemoryModel
from treetrain.partitioning.plan import PartitionPlan
from treetrain.tree.partition import partition_tree
from treetrain.tree.prefix_tree import PrefixTree

#: Tokens below which a forward pass is too short to keep a machine busy.
GOOD_CAPACITY = 512
#: Smallest capacity that is tried, tokens.
SMALLEST_CAPACITY = 32
#: Halvings of the stretch between the largest capacity that fits and the next one that was tried.
_REFINEMENTS = 4


def plan_partitions(
    tree: PrefixTree,
    memory_model: MemoryModel,
    *,
    memory: int | None = None,
    capacity: int | None = None,
    path_capacity: int | None = None,
    mode: Choice = "auto",
    accumulating: bool = False,
) -> PartitionPlan:
    """Choose partitions and modes.

    Args:
        tree: the prefix tree.
        memory_model: the model's memory, from `measure_memory`.
        memory: bytes of the device that a step may take, weights and optimiser included; None: no
            limit, with a capacity.
        capacity: tokens of a partition at most; None: chosen.
        path_capacity: as `partition_tree` has it.
        mode: what partitions do with their activations while descendants run: one for all that have
            any, or "auto", keeping as many as fit and for the others what is cheaper.
        accumulating: whether parameters have gradients before, from other batches of the step.

    Returns:
        The plan.

    Raises:
        ValueError: neither memory nor capacity is given, one is out of range, or `mode` is unknown
            or none of the model's device.
        CapacityError: no plan fits into the memory; names the least that is needed.

    Example:
        >>> from transformers import AutoConfig
        >>> import torch
        >>> from treetrain.partitioning.memory import measure_memory
        >>> from treetrain.tree.build import build_prefix_tree
        >>> config = AutoConfig.for_model("gpt2", n_layer=2, n_embd=64, n_head=2, vocab_size=99)
        >>> tree = build_prefix_tree([[1] * 900 + [2] * 600, [1] * 900 + [3] * 600])
        >>> plan_partitions(tree, measure_memory(config, torch.float32), memory=2**26).is_divided
        False
    """  # noqa: DOC502, DOC503 (the checks raise)
    check_type("tree", tree, PrefixTree, "a PrefixTree from build_prefix_tree(sequences)")
    check_type("memory_model", memory_model, MemoryModel, "what measure_memory gives")
    _check_limits(memory, capacity)
    _check_mode(mode, memory_model)
    search = _Search(tree, memory_model, path_capacity, mode=mode, accumulating=accumulating)
    if memory is None:
        assert capacity is not None
        return next(search.candidates(capacity)).plan(None)
    found = search.run(int(memory)) if capacity is None else search.run_at(capacity, int(memory))
    if found is not None:
        return found
    raise _too_small(tree, int(memory), *search.least(capacity), capacity=capacity)


def _check_limits(memory: int | None, capacity: int | None) -> None:
    if memory is None and capacity is None:
        raise ValueError("memory or capacity must be given, got None for both")
    for name, value, unit in (("memory", memory, "byte"), ("capacity", capacity, "token")):
        if value is not None:
            check_number(name, value, whole=True)
            if value < 1:
                raise CapacityError(f"{name} must be at least 1 {unit}, got {value}")


def _check_mode(mode: str, memory_model: MemoryModel) -> None:
    if mode not in get_args(Choice):
        raise ValueError(f"mode must be one of {list(get_args(Choice))}, got {mode!r}")
    if mode == "offload" and memory_model.on_host:
        raise ValueError(
            f"mode must be 'auto', 'keep' or 'recompute' on {memory_model.device}, whose memory is "
            "the host's, got 'offload'"
        )


def _too_small(
    tree: PrefixTree, memory: int, least: int, needed: int, *, capacity: int | None
) -> CapacityError:
    at = f"capacity {least}" if capacity is None else f"the given capacity {capacity}"
    way_out = (
        f"; capacities below {SMALLEST_CAPACITY} are tried only where one is named"
        if capacity is None
        else "; name a smaller capacity or none"
    )
    return CapacityError(
        f"memory must be at least {needed} bytes ({math.ceil(needed / 2**18) / 4} MiB) for this "
        f"tree of {tree.num_tokens:,} tokens at {at}, got {memory}{way_out}"
    )


class _Search:
    """The divisions of one tree that are tried, and the order in which they are preferred."""

    def __init__(
        self,
        tree: PrefixTree,
        model: MemoryModel,
        path_capacity: int | None,
        *,
        mode: Choice,
        accumulating: bool,
    ) -> None:
        self._tree = tree
        self._model = model
        self._path_capacity = path_capacity
        self._mode: Choice = mode
        self._accumulating = accumulating
        self._made: dict[int, list[Candidate]] = {}

    def candidates(self, capacity: int) -> Iterator[Candidate]:
        """Divide the tree with few partitions, and with the smallest path of partitions.

        Args:
            capacity: tokens of a partition at most.

        Yields:
            The divisions.
        """
        made = self._made.setdefault(capacity, [])
        for place, peak_capacity in enumerate((None, 1)):
            if place == len(made):
                partitions = partition_tree(
                    self._tree,
                    capacity,
                    path_capacity=self._path_capacity,
                    peak_capacity=peak_capacity,
                )
                made.append(
                    Candidate(
                        partitions,
                        self._model,
                        mode=self._mode,
                        accumulating=self._accumulating,
                    )
                )
            yield made[place]
            if made[place].partitions.num_partitions == 1:
                return

    def run(self, memory: int) -> PartitionPlan | None:
        """Find the preferred plan for a memory, or None where none fits."""
        return (
            self._keep_at_largest(memory)
            or self._do_least_work(memory)
            or next(
                (
                    plan
                    for capacity in self._capacities(good=False)
                    if (plan := self.run_at(capacity, memory))
                ),
                None,
            )
        )

    def run_at(self, capacity: int, memory: int) -> PartitionPlan | None:
        """Find the plan of least work at one capacity, or None where none fits."""
        fitting = [one for one in self.candidates(capacity) if one.least <= memory]
        if not fitting:
            return None
        return min(fitting, key=lambda one: one.work(memory)).plan(memory)

    def _keep_at_largest(self, memory: int) -> PartitionPlan | None:
        above: int | None = None
        for capacity in self._capacities(good=True):
            found = self._keeping(capacity, memory)
            if found is None:
                above = capacity
                continue
            low, high = capacity, capacity if above is None else above
            for _ in range(_REFINEMENTS):
                middle = (low + high) // 2
                if middle <= low:
                    break
                better = self._keeping(middle, memory)
                low, high = (low, middle) if better is None else (middle, high)
                found = better or found
            return found.plan(memory)
        return None

    def _keeping(self, capacity: int, memory: int) -> Candidate | None:
        return next((one for one in self.candidates(capacity) if one.fits_keeping(memory)), None)

    def _do_least_work(self, memory: int) -> PartitionPlan | None:
        fitting = [
            (capacity, one)
            for capacity in self._capacities(good=True)
            for one in self.candidates(capacity)
            if one.least <= memory
        ]
        if not fitting:
            return None
        return min(fitting, key=lambda pair: (pair[1].work(memory), -pair[0]))[1].plan(memory)

    def least(self, capacity: int | None) -> tuple[int, int]:
        """Find the capacity that needs the least memory, and how much that is, bytes."""
        tried = [capacity] if capacity is not None else [*self._capacities(good=True)]
        tried += [] if capacity is not None else [*self._capacities(good=False)]
        needed = [(one.least, size) for size in tried for one in self.candidates(size)]
        least, size = min(needed)
        return size, least

    def _capacities(self, *, good: bool) -> Iterator[int]:
        """Capacities from the whole tree down, each half of the one before."""
        capacity = max(self._tree.num_tokens, 1)
        while capacity > GOOD_CAPACITY:
            if good:
                yield capacity
            capacity = max(capacity // 2, GOOD_CAPACITY)
        if good or capacity < SMALLEST_CAPACITY:
            yield capacity
            return
        while capacity > SMALLEST_CAPACITY:
            capacity = max(capacity // 2, SMALLEST_CAPACITY)
            yield capacity
