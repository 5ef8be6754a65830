"""Public agent trajectories for benchmarks, where the folder that holds them is there."""

from __future__ import annotations

import os
from collections.abc import Hashable
from pathlib import Path

from treetrain import Sample
from treetrain.cli.tokenizers import load_tokenizer
from treetrain.data.rows import read_samples

MISSING = "set TREETRAIN_SHARED_DATA to the folder with taubench-airline/"
#: Of each trial of the task so many first steps, so that two cores can run them one by one.
STEPS = 2


def find_folder() -> Path | None:
    """Find the folder of real inputs, beside the repository or where the environment says."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("TREETRAIN_SHARED_DATA", beside))
    return folder if (folder / "taubench-airline").is_dir() else None


def draw_tau_bench(folder: Path, seed: int) -> tuple[list[Sample], int]:
    """Read the first steps of all trials of one tau-bench task, each step a sequence.

    Returns:
        The samples and the vocabulary of the tokenizer.
    """
    samples, vocabulary = draw_tau_bench_task(folder, seed)
    trials: dict[Hashable, list[Sample]] = {}
    for sample in samples:
        trials.setdefault(sample.trajectory, []).append(sample)
    return [sample for steps in trials.values() for sample in steps[:STEPS]], vocabulary


def draw_tau_bench_task(folder: Path, seed: int) -> tuple[list[Sample], int]:
    """Read all steps of all trials of one tau-bench task, each step a sequence.

    The shipped tokenizer cuts the text; the schemas of the tools are left out.

    Returns:
        The samples and the vocabulary of the tokenizer.
    """
    del seed
    tokenizer = load_tokenizer("demo")
    samples = read_samples(
        folder / "taubench-airline" / "trajectories.jsonl",
        tokenizer=tokenizer,
        expand="per_step",
        tools=[],
        select={"group": "task0"},
    )
    return samples, len(tokenizer)
