"""Memory of a partitioned step against capacity: what the plan estimates and what a run takes.

Each run is a process of its own: `measured_bytes` is what its resident memory grows by from before
the model is made to the most of the step, `estimated_bytes` what `plan_partitions` says, weights
and gradients included. The C library gives freed blocks back (`give_back_freed_blocks`); with its
own habits a process keeps more than lives. The last case is a tree of 64 k tokens whose longest
path has 14 k; `undivided_bytes` is the estimate of one row of it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter

import numpy as np
import shapes
import torch
from bench_step import drawn, make_model
from harness import Figures, make_parser, run_cases

from treetrain import Sample, measure_memory, pack, plan_partitions, prepare, sft_terms
from treetrain.partitioning.host_memory import give_back_freed_blocks
from treetrain.partitioning.step import partitioned_step


def long_comb(seed: int) -> list[Sample]:
    """The comb of `shapes`: 7,104 tokens, the longest path 4,128."""
    return drawn(shapes.long_comb, seed)[0]


def deep_tree(seed: int) -> list[Sample]:
    """A tree of 64 k tokens whose longest path has 14 k: an agent's steps, some of them retried."""
    rng = np.random.default_rng(seed)
    spine = rng.integers(0, 512, 14_000).tolist()
    paths = [spine]
    left = 64_000 - len(spine)
    while left > 0:
        start = int(rng.integers(1_000, len(spine) - 600))
        length = min(int(rng.integers(200, 600)), left)
        paths.append(spine[:start] + rng.integers(0, 512, length).tolist())
        left -= length
    return [Sample(path, [0.0] * (len(path) - 200) + [1.0] * 200) for path in paths]


SHAPES: dict[str, Callable[[int], list[Sample]]] = {
    "long_comb": long_comb,
    "deep_tree": deep_tree,
}


def run(shape: str, capacity: int, mode: str, *, seed: int) -> Figures:
    """One step in this process; its resident memory is read from the operating system."""
    torch.set_num_threads(2)
    samples = SHAPES[shape](seed)
    batch = pack(samples)
    # What torch loads at the first step of all does not count.
    warm = make_model("llama", 512, seed)
    prepare(warm, "slices")
    some = pack([samples[0].tokens[:64]])
    plan = plan_partitions(some.tree, measure_memory(warm, optimizer="none"), capacity=64)
    partitioned_step(warm, some, plan, sft_terms(some, "token_mean"))
    del warm
    give_back_freed_blocks()
    before = read_status("VmRSS")
    # Begins the record of the most resident memory anew.
    Path("/proc/self/clear_refs").write_text("5")
    model = make_model("llama", 512, seed)
    prepare(model, "slices")
    memory = measure_memory(model, optimizer="none")
    plan = plan_partitions(batch.tree, memory, capacity=capacity, mode=mode)  # pyright: ignore[reportArgumentType]
    whole = plan_partitions(batch.tree, memory, capacity=batch.num_tokens)
    start = perf_counter()
    step = partitioned_step(model, batch, plan, sft_terms(batch, "token_mean"))
    seconds = perf_counter() - start
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    measured = read_status("VmHWM") - before
    partitions = plan.partitions
    return {
        "mode": mode,
        "capacity": capacity,
        "tree_tokens": batch.num_tokens,
        "longest_path": int(batch.tree.sequence_lengths.max()),
        "partitions": partitions.num_partitions,
        "lower_bound": partitions.lower_bound,
        "peak_tokens": partitions.peak,
        "computed_tokens": step.computed_tokens,
        "estimated_bytes": plan.estimate.peak_bytes,
        "measured_bytes": measured,
        "estimate_ratio": plan.estimate.peak_bytes / measured,
        "resident_bytes": read_status("VmHWM"),
        "undivided_bytes": whole.estimate.peak_bytes,
        "seconds": seconds,
    }


def read_status(name: str) -> int:
    """A figure of this process's memory, bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def measure(shape: str, capacity: int, mode: str, *, seed: int) -> Figures:
    command = [sys.executable, __file__, "--run", shape, str(capacity), mode, "--seed", str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout)


def main() -> None:
    parser = make_parser("Memory of a partitioned step against capacity.")
    parser.add_argument("--run", nargs=3, metavar=("SHAPE", "CAPACITY", "MODE"))
    arguments = parser.parse_args()
    if arguments.run:
        shape, capacity, mode = arguments.run
        print(json.dumps(run(shape, int(capacity), mode, seed=arguments.seed)))
        return
    settings = [
        ("long_comb", capacity, mode)
        for capacity in (512, 1024, 2048, 4096)
        for mode in ("keep", "recompute")
    ]
    settings += [("deep_tree", 2048, mode) for mode in ("keep", "recompute")]
    cases = {
        f"{shape}_{capacity}_{mode}": partial(measure, shape, capacity, mode, seed=arguments.seed)
        for shape, capacity, mode in settings
    }
    run_cases(cases, arguments, parser)


if __name__ == "__main__":
    main()
