"""What torch holds at once in a real run on the CPU, for tests of estimates."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile


def measure_peak(run: Callable[[], object]) -> int:
    """The most bytes that torch's CPU allocator held at once above what was there before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = run()
    del result
    held = peak = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


def measure_saved(model: torch.nn.Module, run: Callable[[], torch.Tensor]) -> int:
    """Bytes of distinct memory that a forward pass keeps for its backward pass, and its result."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        result = run()
    note(result)
    return sum(storage.nbytes() for storage in kept.values())
