"""The rows of an epoch: which sequences share, in which order, and how they are packed and cut."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from treetrain.data.sample import Sample
from treetrain.packing.batch import Batch, group_samples
from treetrain.packing.budget import pack_batches
from treetrain.training.config import TreeConfig
from treetrain.tree.partition import Partitions, partition_tree
from treetrain.wording import say_count

Grouping = Literal["group", "trajectory", "all"]


def regroup(samples: Sequence[Sample], grouping: Grouping) -> list[Sample]:
    """Name for each sequence the tree that it belongs to.

    Args:
        samples: the sequences.
        grouping: "group" leaves them; "trajectory" makes one tree of each trajectory of a group,
            and of each sequence that names none; "all" makes one of all sequences.

    Returns:
        The sequences in their order, with other groups; trajectories stay apart as they were.

    Example:
        >>> samples = [Sample([1], group="a", trajectory=0), Sample([2], group="b", trajectory=0)]
        >>> [(s.group, s.trajectory) for s in regroup(samples, "all")]
        [(None, ('a', 0)), (None, ('b', 0))]
    """
    if grouping == "group":
        return list(samples)
    found: list[Sample] = []
    for index, sample in enumerate(samples):
        name = None if sample.trajectory is None else (sample.group, sample.trajectory)
        group: Hashable = None
        if grouping == "trajectory":
            group = ("sequence", index) if name is None else ("trajectory", *name)
        found.append(replace(sample, group=group, trajectory=name))
    return found


def hold_out(
    samples: Sequence[Sample], share: float, *, seed: int
) -> tuple[list[Sample], list[Sample]]:
    """Hold some groups out of training.

    Args:
        samples: the sequences.
        share: part of the groups, rounded, at least one of them.
        seed: seed of the choice.

    Returns:
        The sequences that are trained, and those that are not, each in their order.

    Raises:
        ValueError: no group would be left to train.
    """
    groups = group_samples(samples)
    count = max(1, round(share * len(groups)))
    if count >= len(groups):
        raise ValueError(
            f"evaluation.share must leave a group to train, got {share} of "
            f"{say_count(len(groups), 'group')}; give evaluation.files instead"
        )
    # Another stream than that of the order of rows.
    order = np.random.default_rng((seed, 1)).permutation(len(groups))
    held = {index for place in order[:count].tolist() for index in groups[place].tolist()}
    kept = [sample for index, sample in enumerate(samples) if index not in held]
    return kept, [samples[index] for index in sorted(held)]


def pack_shuffled(
    samples: Sequence[Sample], *, max_tokens: int, seed: int | None, split_groups: bool
) -> list[Batch]:
    """Pack the data once, trees in random order.

    Args:
        samples: the sequences.
        max_tokens: tree tokens of one row.
        seed: seed of the order; None: the order of the samples.
        split_groups: whether a group larger than that is split, rather than left for partitions.

    Returns:
        The rows.
    """
    groups = group_samples(samples)
    if seed is not None:
        order = np.random.default_rng(seed).permutation(len(groups))
        groups = [groups[place] for place in order.tolist()]
    ordered = [samples[index] for group in groups for index in group.tolist()]
    return pack_batches(ordered, max_tokens=max_tokens, split_groups=split_groups)


def cut_large(batches: Sequence[Batch], max_tokens: int) -> dict[Batch, Partitions]:
    """Cut the trees that are larger than a row.

    Args:
        batches: the rows of an epoch.
        max_tokens: tree tokens of one partition.

    Returns:
        The partitions of each batch that exceeds the budget.
    """
    return {
        batch: partition_tree(batch.tree, max_tokens) for batch in batches if batch.exceeds_budget
    }


def order_windows(
    batches: Sequence[Batch], accumulation: int, *, seed: int | None
) -> Iterator[list[Batch]]:
    """Give the rows of one optimiser step after the other, without end.

    Args:
        batches: the rows of an epoch.
        accumulation: rows of one step; the last step of an epoch may have fewer, and is a whole
            step of its own.
        seed: seed of the order of the rows, another in each epoch; None: as they stand.

    Yields:
        The rows of a step.
    """
    epoch = 0
    while True:
        order = np.arange(len(batches))
        if seed is not None:
            order = np.random.default_rng((seed, epoch)).permutation(order)
        for start in range(0, len(batches), accumulation):
            yield [batches[place] for place in order[start : start + accumulation].tolist()]
        epoch += 1


def describe_batches(batches: Sequence[Batch], partitions: Mapping[Batch, Partitions]) -> str:
    """Say how the data was packed.

    Args:
        batches: the rows of an epoch.
        partitions: how the trees of those larger than a row are cut.

    Returns:
        A sentence or two.
    """
    flat = sum(int(batch.tree.sequence_lengths.sum()) for batch in batches)
    tree = sum(batch.num_tokens for batch in batches)
    sequences = sum(batch.num_sequences for batch in batches)
    text = (
        f"data: {say_count(sequences, 'sequence')}, {flat:,} flat tokens, {tree:,} tree tokens "
        f"({flat / max(tree, 1):.2f}x) in {say_count(len(batches), 'packed row')}"
    )
    again = sum(batch.duplicated_tokens for batch in batches)
    if again:
        text += (
            f"; {again:,} tree tokens are computed again because their group is larger than "
            "tree.max_tokens and tree.larger is split"
        )
    longer = sum(batch.exceeds_budget and batch not in partitions for batch in batches)
    if longer:
        text += (
            f"; {say_count(longer, 'sequence')} longer than tree.max_tokens in a row of their own"
        )
    if partitions:
        cuts = partitions.values()
        count = sum(cut.num_partitions for cut in cuts)
        text += (
            f"; {say_count(len(partitions), 'tree')} larger than tree.max_tokens in "
            f"{say_count(count, 'partition')} (lower bound {sum(c.lower_bound for c in cuts)}), at "
            f"most {max(cut.peak for cut in cuts):,} tokens alive at once"
        )
    return text


@dataclass(frozen=True, eq=False)
class EpochRows:
    """The rows of an epoch.

    Attributes:
        batches: the rows.
        partitions: how the trees of some of them are cut.
    """

    batches: list[Batch]
    partitions: dict[Batch, Partitions]


def make_rows(samples: Sequence[Sample], config: TreeConfig, *, seed: int | None) -> EpochRows:
    """Pack sequences as a configuration says.

    Args:
        samples: the sequences.
        config: grouping, size of a row, and what happens to larger trees.
        seed: seed of the order; None: the order of the samples.

    Returns:
        The rows, with every sequence in one of them.
    """
    split = config.larger == "split"
    batches = pack_shuffled(
        regroup(samples, config.grouping),
        max_tokens=config.max_tokens,
        seed=seed,
        split_groups=split,
    )
    return EpochRows(batches, {} if split else cut_large(batches, config.max_tokens))
