"""A memory model of round numbers, and modes, for tests of plans and estimates."""

from __future__ import annotations

from treetrain.partitioning.memory_model import HeadMemory, Line, MemoryModel, Phase
from treetrain.tree.metrics import ModelShape


def make_memory_model(device="cpu", **others):
    values = {
        "device": device,
        "shape": ModelShape(parameters=1000, layers=2, heads=2, head_size=4),
        "checkpointing": False,
        "weights": 4000,
        "gradients": 4000,
        "optimizer": 8000,
        "optimizer_working": 100,
        "activations": Line(10, 500),
        "key_values": 32,
        "accumulators": 32,
        "gateway": 48,
        "forward": Line(10, 60),
        "phases": (Phase(Line(10, 520), 0), Phase(Line(900, 20), 4000)),
        "head": HeadMemory(800, 16, 50, 8),
    }
    return MemoryModel(**values | others)


def modes_of(partitions, mode):
    inner = set(partitions.parents.tolist())
    return [mode if place in inner else "keep" for place in range(partitions.num_partitions)]
