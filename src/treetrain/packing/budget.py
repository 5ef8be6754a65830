"""Samples cut into batches under a token budget counted in tree tokens.

Groups are the unit. A group that is larger than the budget is split, and then the prefixes its
parts share are computed once per part, or is left whole for `treetrain.partitioning`, which cuts
its tree and computes nothing twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from treetrain.data.sample import Sample
from treetrain.errors import check_number
from treetrain.packing.batch import Batch, as_samples, assemble, build_group_tree, group_samples
from treetrain.tree.prefix_tree import Ints, PrefixTree


@dataclass(frozen=True, eq=False)
class _Part:
    """A group, or what fits of it: its samples, its tree, and the prefix another part holds too."""

    members: Ints
    tree: PrefixTree
    duplicated_tokens: int


def pack_batches(
    samples: Iterable[Sample | ArrayLike], *, max_tokens: int, split_groups: bool = True
) -> list[Batch]:
    """Pack samples into as few rows as a simple rule finds, under a budget of tree tokens.

    Each group goes whole into the first batch that has room for it. A group larger than the budget
    is split along its depth-first order of sequences; the prefix that a part shares with an earlier
    one is computed again and counted in `Batch.duplicated_tokens`. A single sequence longer than
    the budget, or with `split_groups=False` a group larger than it, is neither refused nor
    shortened: it is a batch of its own with `Batch.exceeds_budget` set, and `partitioned_step`
    computes it in parts of any size, each token once.

    Args:
        samples: samples, or bare token ids, of which every token is trained.
        max_tokens: most tree tokens of a batch.
        split_groups: whether a group larger than the budget is split.

    Returns:
        The batches, on the CPU. `Batch.indices` says which of the caller's samples each one holds;
        every sample is in exactly one.

    Raises:
        ValueError: `max_tokens` is below 1.

    Example:
        >>> batches = pack_batches([[1, 2, 3], [1, 2, 4], [1, 2, 5]], max_tokens=4)
        >>> [(b.indices.tolist(), b.num_tokens, b.duplicated_tokens) for b in batches]
        [([0, 1], 4, 0), ([2], 3, 2)]
    """
    check_number("max_tokens", max_tokens, whole=True)
    if max_tokens < 1:
        raise ValueError(f"max_tokens must be at least 1, got {max_tokens}")
    checked = as_samples(samples)
    parts: list[_Part] = []
    for members in group_samples(checked):
        tree = build_group_tree(checked, members)
        if tree.num_tokens <= max_tokens or not split_groups:
            parts.append(_Part(members, tree, 0))
        else:
            parts.extend(_split_group(checked, members, tree, max_tokens))
    return [
        assemble(
            checked,
            [(part.members, part.tree) for part in batch],
            duplicated_tokens=sum(part.duplicated_tokens for part in batch),
            exceeds_budget=any(part.tree.num_tokens > max_tokens for part in batch),
        )
        for batch in _first_fit(parts, max_tokens)
    ]


def _split_group(
    samples: Sequence[Sample], members: Ints, tree: PrefixTree, max_tokens: int
) -> list[_Part]:
    """Cut a group's sequences, in depth-first order, where the next one no longer fits."""
    order = np.argsort(tree.sequence_nodes, kind="stable")
    lengths = tree.sequence_lengths[order].tolist()
    added = _added_tokens(tree, order).tolist()
    starts = [0]
    room = max_tokens - lengths[0]
    for place in range(1, len(order)):
        room -= added[place]
        # A sequence that adds nothing is welcome even beside one that is longer than the budget.
        if room < 0 and added[place] > 0:
            starts.append(place)
            room = max_tokens - lengths[place]
    parts: list[_Part] = []
    for start, end in zip(starts, [*starts[1:], len(order)], strict=True):
        chosen = np.sort(members[order[start:end]])
        parts.append(
            _Part(
                chosen,
                build_group_tree(samples, chosen),
                lengths[start] - added[start],
            )
        )
    return parts


def _added_tokens(tree: PrefixTree, order: Ints) -> Ints:
    """Tokens of each sequence's path, in depth-first order, that no earlier sequence passes."""
    # Nodes below a node are an interval that starts with it, so the first sequence through node n
    # is the first one that ends at n or later.
    firsts = np.searchsorted(tree.sequence_nodes[order], np.arange(tree.num_nodes))
    return np.bincount(firsts, weights=tree.node_lengths, minlength=len(order)).astype(np.int64)


def _first_fit(parts: Sequence[_Part], max_tokens: int) -> list[list[_Part]]:
    batches: list[list[_Part]] = []
    room = np.zeros(len(parts), np.int64)
    for part in parts:
        need = part.tree.num_tokens
        fitting = np.flatnonzero(room[: len(batches)] >= need)
        if len(fitting):
            place = int(fitting[0])
            batches[place].append(part)
        else:
            place = len(batches)
            batches.append([part])
            room[place] = max_tokens
        room[place] -= need
    return batches
