"""`treetrain plan`: says how trees of a file are cut for a model and a memory, before training.

Only the model's config is read, but for GGUF files; nothing is trained.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from treetrain.cli.reading import add_reading_arguments, read_file
from treetrain.cli.sizes import read_size, say_size
from treetrain.wording import say_count

if TYPE_CHECKING:
    from treetrain.data.sample import Sample
    from treetrain.partitioning.memory_model import MemoryModel
    from treetrain.partitioning.plan import PartitionPlan
    from treetrain.progress import Progress
    from treetrain.tree.prefix_tree import PrefixTree

GROUPS_SHOWN = 20
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
        help="memory of the device, for example 80GiB, 24GB or 512MiB; weights, gradients and "
        "optimiser are counted",
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
    parser.add_argument(
        "--dtype",
        choices=("float32", "float64", "bfloat16"),
        default="float32",
        help="dtype of weights and computation (default: float32)",
    )
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
    parser.add_argument(
        "--group", metavar="G", action="append", help="only this group; may be repeated"
    )
    parser.add_argument(
        "--together",
        action="store_true",
        help="all groups in one step (default: each group in a step of its own)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object and nothing else"
    )


@dataclass(frozen=True)
class _Planned:
    """A group, its tree, and its plan."""

    group: str
    tree: PrefixTree
    plan: PartitionPlan

    @property
    def longest_path(self) -> int:
        return int(self.tree.sequence_lengths.max(initial=0))


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
        raise ValueError("--memory or --capacity must be given, got neither; --memory 80GiB")
    memory = None if args.memory is None else read_size("--memory", args.memory)
    # Asked for here, so that a wrong name is told before the model is looked at.
    args.file.stat()
    progress = Progress()
    progress(f"checking the model {args.model}")
    check_source(args.model)
    samples, notes = _read(args, progress)
    progress(f"measuring the model {args.model} without its weights")
    model = _measure(args, samples)
    planned: list[_Planned] = []
    for group, tree in _build_trees(samples, together=args.together):
        progress(f"planning group {group}: {tree.num_tokens:,} tree tokens")
        planned.append(_Planned(group, tree, _plan(args, tree, model, memory=memory, group=group)))
    progress.wipe()
    if args.json:
        print(json.dumps(_as_json(planned, memory, model, notes)))
    else:
        for line in notes:
            print(f"note: {line}", file=sys.stderr)
        print("\n".join(_as_lines(planned, memory, args)))
    return 0


def _read(args: argparse.Namespace, progress: Progress) -> tuple[list[Sample], list[str]]:
    from treetrain.cli.limits import select_groups
    from treetrain.cli.tokenizers import find_tokenizer

    tokenizer = find_tokenizer(args.tokenizer, args.model)
    progress(f"reading {args.file}")
    samples, reading = read_file(args, tokenizer)
    samples, notes = select_groups(samples, args.group)
    return samples, reading.notes() + notes


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
    from treetrain.partitioning.plan import plan_partitions

    try:
        return plan_partitions(
            tree, model, memory=memory, capacity=args.capacity, mode=args.mode
        )
    except CapacityError as error:
        message = str(error).replace("memory must", "--memory must")
        raise CapacityError(f"group {group}: {message.replace('capacity must', '--capacity must')}")


def _as_json(
    planned: list[_Planned], memory: int | None, model: MemoryModel, notes: list[str]
) -> dict[str, Any]:
    return {
        "memory": memory,
        "device": model.device,
        "groups": [
            {
                "group": one.group,
                "tree_tokens": one.tree.num_tokens,
                "longest_path": one.longest_path,
                "capacity": one.plan.partitions.capacity,
                "partitions": one.plan.partitions.num_partitions,
                "lower_bound": one.plan.partitions.lower_bound,
                "largest_path_of_partitions": one.plan.partitions.peak,
                "modes": {mode: one.plan.modes.count(mode) for mode in _modes()},
                "estimate": asdict(one.plan.estimate),
                "cost": asdict(one.plan.cost),
            }
            for one in planned
        ],
        "notes": notes,
    }


def _modes() -> tuple[Any, ...]:
    from typing import get_args

    from treetrain.partitioning.memory_model import Mode

    return get_args(Mode)


def _as_lines(planned: list[_Planned], memory: int | None, args: argparse.Namespace) -> list[str]:
    lines = [
        f"{args.model}, {args.dtype}, on {args.device}"
        + ("" if memory is None else f", memory {say_size(memory)}"),
        "",
        f"{'group':<24}{'tree tokens':>12}{'longest path':>14}{'capacity':>10}{'partitions':>12}"
        f"{'at least':>10}{'keep':>6}{'recompute':>11}{'offload':>9}{'work':>7}{'peak':>12}",
        *(_row(one) for one in planned[:GROUPS_SHOWN]),
    ]
    hidden = len(planned) - GROUPS_SHOWN
    if hidden > 0:
        lines.append(f"... and {say_count(hidden, 'more group')} (all of them with --json)")
    if not planned:
        return [*lines, "no sequences"]
    worst = max(planned, key=lambda one: one.plan.estimate.peak_bytes)
    return [*lines, "", *_part_lines(worst), "", _verdict(planned, memory)]


def _row(one: _Planned) -> str:
    plan, partitions = one.plan, one.plan.partitions
    name = one.group if len(one.group) <= 23 else one.group[:20] + "..."
    keep, recompute, offload = (plan.modes.count(mode) for mode in _modes())
    return (
        f"{name:<24}{one.tree.num_tokens:>12}{one.longest_path:>14}{partitions.capacity:>10}"
        f"{partitions.num_partitions:>12}{partitions.lower_bound:>10}{keep:>6}{recompute:>11}"
        f"{offload:>9}{plan.cost.relative:>7.2f}{say_size(plan.estimate.peak_bytes):>12}"
    )


def _part_lines(one: _Planned) -> list[str]:
    estimate, cost = one.plan.estimate, one.plan.cost
    lines = [f"peak of group {one.group}, {say_size(estimate.peak_bytes)}:"]
    lines += [
        f"  {name.replace('_', ' and '):<18}{say_size(size):>12}{size / estimate.peak_bytes:>7.0%}"
        for name, size in estimate.parts.items()
    ]
    if cost.recomputed_tokens:
        lines.append(f"  {say_count(cost.recomputed_tokens, 'token')} computed again")
    if cost.moved_bytes:
        lines.append(
            f"  {say_size(estimate.host_bytes)} in the host's memory, {say_size(cost.moved_bytes)} "
            "moved there and back"
        )
    return lines


def _verdict(planned: list[_Planned], memory: int | None) -> str:
    divided = sum(one.plan.is_divided for one in planned)
    within = "" if memory is None else f" in {say_size(memory)}"
    if not divided:
        what = "the tree" if len(planned) == 1 else "every tree"
        return f"no need to partition: {what} fits undivided{within}"
    return (
        f"{divided} of {say_count(len(planned), 'tree')} "
        f"{'has' if divided == 1 else 'have'} to be partitioned; 'work' is floating-point work over "
        "that of the undivided step"
    )
