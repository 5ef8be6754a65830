"""`treetrain plan`: says how trees of a file are cut for a model and a memory, before training.

Only the model's config is read, but for GGUF files; nothing is trained.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from treetrain.cli.options import add_dtype_option
from treetrain.cli.plan_tables import Planned, as_json, as_text
from treetrain.cli.reading import add_group_option, add_reading_arguments, read_groups
from treetrain.cli.sizes import read_size

if TYPE_CHECKING:
    from treetrain.data.sample import Sample
    from treetrain.partitioning.memory_model import MemoryModel
    from treetrain.partitioning.plan import PartitionPlan
    from treetrain.progress import Progress
    from treetrain.tree.prefix_tree import PrefixTree

NO_GROUP = "(no group)"
ALL = "(all groups)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `treetrain plan`.

    Args:
        parser: parser of this verb.
    """
    add_reading_arguments(parser)
    parser.add_argument(
        "--model",
        metavar="M",
        required=True,
        help="folder, .gguf file, 'smollm2', 'tiny:TYPE' or a model's name; no weights are "
        "loaded where it has a config",
    )
    parser.add_argument(
        "--memory",
        metavar="SIZE",
        help="memory that a step may take, for example 70GiB, 24GB or 512MiB, weights, gradients "
        "and optimiser states included; leave room for what kernels and the allocator hold",
    )
    parser.add_argument(
        "--capacity", metavar="N", type=int, help="tokens of a partition (default: chosen)"
    )
    parser.add_argument(
        "--mode",
        choices=("auto", "keep", "recompute", "offload"),
        default="auto",
        help="what partitions do with their activations while others run below them (default: "
        "auto, keep what fits)",
    )
    add_dtype_option(parser)
    parser.add_argument(
        "--optimizer",
        choices=("adamw", "none"),
        default="adamw",
        help="whose states are counted (default: adamw)",
    )
    parser.add_argument(
        "--gradient-checkpointing",
        action="store_true",
        help="the model computes activations of its layers again in the backward pass",
    )
    parser.add_argument(
        "--device",
        metavar="D",
        default="cpu",
        help="where training is to run; it need not be there (default: cpu)",
    )
    add_group_option(parser)
    parser.add_argument(
        "--together",
        action="store_true",
        help="all groups in one step (default: each group in a step of its own)",
    )


def run(args: argparse.Namespace) -> int:
    """Reads the file, measures the model without its weights, plans, prints.

    Args:
        args: parsed arguments.

    Returns:
        Exit code 0.

    Raises:
        ValueError: neither memory nor capacity is given.
    """
    from treetrain.cli.configs import check_source
    from treetrain.progress import Progress

    if args.memory is None and args.capacity is None:
        raise ValueError(
            "--memory or --capacity must be given, got neither; for example --memory 70GiB"
        )
    if args.capacity is not None and args.capacity < 1:
        raise ValueError(f"--capacity must be at least 1 token, got {args.capacity}")
    memory = None if args.memory is None else read_size("--memory", args.memory)
    # Asked for here, so that a wrong name is told before the model is looked at.
    args.file.stat()
    progress = Progress()
    progress(f"checking the model {args.model}")
    check_source(args.model)
    samples, notes = _read(args, progress)
    progress(f"measuring the model {args.model} without its weights")
    model = _measure(args, samples)
    planned: list[Planned] = []
    for group, tree in _build_trees(samples, together=args.together):
        progress(f"planning group {group}: {tree.num_tokens:,} tree tokens")
        planned.append(Planned(group, tree, _plan(args, tree, model, memory=memory, group=group)))
    progress.wipe()
    if args.json:
        print(json.dumps(as_json(planned, memory, device=model.device, notes=notes)))
    else:
        for line in notes:
            print(f"note: {line}", file=sys.stderr)
        title = f"{args.model}, {args.dtype}, on {args.device}"
        print(as_text(planned, memory, title=title))
    return 0


def _read(args: argparse.Namespace, progress: Progress) -> tuple[list[Sample], list[str]]:
    from treetrain.cli.tokenizers import find_tokenizer

    tokenizer = find_tokenizer(args.tokenizer, args.model)
    progress(f"reading {args.file}")
    return read_groups(args, tokenizer)


def _measure(args: argparse.Namespace, samples: list[Sample]) -> MemoryModel:
    import torch

    from treetrain.cli.configs import TINY, make_tiny_config, read_config
    from treetrain.cli.sources import without_warnings
    from treetrain.partitioning.memory import measure_memory

    config = read_config(args.model)
    if args.model.startswith(TINY):
        largest = max((int(sample.tokens.max(initial=0)) for sample in samples), default=0)
        config = make_tiny_config(
            args.model.removeprefix(TINY),
            vocabulary=max(largest + 1, 1024),
            positions=max(map(len, samples), default=0),
        )
    dtype = getattr(torch, args.dtype)
    with without_warnings():
        if config is None:
            return _measure_loaded(args)
        return measure_memory(
            config,
            dtype,
            device=args.device,
            optimizer=args.optimizer,
            gradient_checkpointing=args.gradient_checkpointing,
        )


def _measure_loaded(args: argparse.Namespace) -> MemoryModel:
    """Measures a GGUF file's model, whose config takes as long to read as its weights."""
    from treetrain.cli.models import load_model
    from treetrain.models.prepare import prepare
    from treetrain.partitioning.memory import measure_memory

    model = load_model(args.model, dtype=args.dtype)
    if args.gradient_checkpointing:
        model.gradient_checkpointing_enable()
        model.train()
    prepare(model)
    return measure_memory(model, device=args.device, optimizer=args.optimizer)


def _build_trees(samples: list[Sample], *, together: bool) -> list[tuple[str, PrefixTree]]:
    from treetrain.packing.batch import build_group_tree, group_samples
    from treetrain.tree.build import concatenate_trees

    members = group_samples(samples)
    trees = [build_group_tree(samples, group) for group in members]
    if together and len(trees) > 1:
        return [(ALL, concatenate_trees(trees))]
    names = [samples[int(group[0])].group for group in members]
    return [
        (NO_GROUP if name is None else str(name), tree)
        for name, tree in zip(names, trees, strict=True)
    ]


def _plan(
    args: argparse.Namespace,
    tree: PrefixTree,
    model: MemoryModel,
    *,
    memory: int | None,
    group: str,
) -> PartitionPlan:
    from treetrain.errors import CapacityError
    from treetrain.partitioning.planning import plan_partitions

    try:
        return plan_partitions(tree, model, memory=memory, capacity=args.capacity, mode=args.mode)
    except CapacityError as error:
        message = str(error)
        for argument in ("memory", "capacity"):
            message = message.replace(f"{argument} must", f"--{argument} must")
        raise CapacityError(f"group {group}: {message}") from error
