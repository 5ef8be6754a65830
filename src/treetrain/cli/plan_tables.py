"""Plans as a JSON object and as text for a person."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from treetrain.cli.sizes import say_size
from treetrain.wording import say_count

if TYPE_CHECKING:
    from treetrain.partitioning.plan import PartitionPlan
    from treetrain.tree.prefix_tree import PrefixTree

GROUPS_SHOWN = 20
#: As `treetrain.partitioning.memory_model.Mode` has them.
MODES: tuple[Any, ...] = ("keep", "recompute", "offload")


@dataclass(frozen=True)
class Planned:
    """A group, its tree, and its plan.

    Attributes:
        group: the group's name.
        tree: its tree.
        plan: the plan.
    """

    group: str
    tree: PrefixTree
    plan: PartitionPlan

    @property
    def longest_path(self) -> int:
        """Tokens of the longest sequence."""
        return int(self.tree.sequence_lengths.max(initial=0))


def as_json(
    planned: list[Planned], memory: int | None, *, device: str, notes: list[str]
) -> dict[str, Any]:
    """Puts plans into plain values.

    Args:
        planned: the plans.
        memory: bytes they were made for; None: no limit.
        device: where training is to run.
        notes: what is to be known of the file.

    Returns:
        The object that `--json` prints.
    """
    return {
        "memory": memory,
        "device": device,
        "groups": [
            {
                "group": one.group,
                "tree_tokens": one.tree.num_tokens,
                "longest_path": one.longest_path,
                "capacity": one.plan.partitions.capacity,
                "partitions": one.plan.partitions.num_partitions,
                "lower_bound": one.plan.partitions.lower_bound,
                "largest_path_of_partitions": one.plan.partitions.peak,
                "modes": {mode: one.plan.modes.count(mode) for mode in MODES},
                "estimate": asdict(one.plan.estimate),
                "cost": asdict(one.plan.cost),
            }
            for one in planned
        ],
        "notes": notes,
    }


def as_text(planned: list[Planned], memory: int | None, *, title: str) -> str:
    """Writes plans for a person.

    Args:
        planned: the plans.
        memory: bytes they were made for; None: no limit.
        title: which model, and where it is to run.

    Returns:
        Several lines.
    """
    lines = [
        title + ("" if memory is None else f", memory {say_size(memory)}"),
        "",
        f"{'group':<24}{'tree tokens':>12}{'longest path':>14}{'capacity':>10}{'partitions':>12}"
        f"{'bound':>10}{'keep':>6}{'recompute':>11}{'offload':>9}{'work':>7}{'peak':>12}",
        *(_row(one) for one in planned[:GROUPS_SHOWN]),
    ]
    hidden = len(planned) - GROUPS_SHOWN
    if hidden > 0:
        lines.append(f"... and {say_count(hidden, 'more group')} (all of them with --json)")
    if not planned:
        return "\n".join([*lines, "no sequences"])
    worst = max(planned, key=lambda one: one.plan.estimate.peak_bytes)
    return "\n".join([*lines, "", *_part_lines(worst), "", _verdict(planned, memory)])


def _row(one: Planned) -> str:
    plan, partitions = one.plan, one.plan.partitions
    name = one.group if len(one.group) <= 23 else one.group[:20] + "..."
    keep, recompute, offload = (plan.modes.count(mode) for mode in MODES)
    return (
        f"{name:<24}{one.tree.num_tokens:>12}{one.longest_path:>14}{partitions.capacity:>10}"
        f"{partitions.num_partitions:>12}{partitions.lower_bound:>10}{keep:>6}{recompute:>11}"
        f"{offload:>9}{plan.cost.relative:>7.2f}{say_size(plan.estimate.peak_bytes):>12}"
    )


def _part_lines(one: Planned) -> list[str]:
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


def _verdict(planned: list[Planned], memory: int | None) -> str:
    divided = sum(one.plan.is_divided for one in planned)
    within = "" if memory is None else f" in {say_size(memory)}"
    if not divided:
        what = "the tree" if len(planned) == 1 else "every tree"
        return f"no need to partition: {what} fits undivided{within}"
    return (
        f"{divided} of {say_count(len(planned), 'tree')} "
        f"{'has' if divided == 1 else 'have'} to be partitioned; 'work' is floating-point work "
        "over that of the undivided step"
    )
