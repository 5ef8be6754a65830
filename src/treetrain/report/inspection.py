"""Counts what sharing saves in a set of samples, and says whether it pays to train on trees."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from treetrain.data.sample import Sample, shared_keys
from treetrain.report.partings import Parting, find_partings, merge_partings
from treetrain.tree.build import build_prefix_tree
from treetrain.tree.metrics import (
    ModelShape,
    TreeMetrics,
    flop_bound,
    leafized_flop_bound,
    measure_tree,
)
from treetrain.tree.prefix_tree import PrefixTree

# Equal programs differ by up to a fifth between processes; a smaller gain cannot be told from none.
PAYS_FROM = 1.2

# A model of 0.6 billion parameters, 440 million of them outside the embeddings.
DEFAULT_SHAPE = ModelShape(parameters=440_000_000, layers=28, heads=16, head_size=128)


@dataclass(frozen=True)
class GroupCount:
    """What one group holds and saves.

    Attributes:
        group: the group's name, None for samples without one.
        metrics: counts of its tree.
        flop_bound: work of separate sequences over that of the tree.
        targets: tokens predicted at least once, each with its one predictor.
        targets_flat: the same counted once for each sequence.
        partings: where its paths part, the costliest first.
    """

    group: Hashable
    metrics: TreeMetrics
    flop_bound: float
    targets: int
    targets_flat: int
    partings: list[Parting]


@dataclass(frozen=True)
class Inspection:
    """What a set of samples holds and saves.

    Attributes:
        groups: one count per group, in order of first appearance.
        total: counts of all groups; a sum, or the greatest where a greatest is counted.
        flop_bound: work of all sequences, each alone, over that of all trees.
        leafized_flop_bound: the same without sequences that are prefixes of others.
        targets: tokens predicted at least once.
        targets_flat: the same counted once for each sequence.
        token_reduction_mean: mean of the groups' token reductions.
        partings: where paths part, over all groups, the costliest first.
        shape: sizes of the model that the bound is for.
        pays: whether the bound is at least `PAYS_FROM`.
        reason: why, with the figures.
    """

    groups: list[GroupCount]
    total: TreeMetrics
    flop_bound: float
    leafized_flop_bound: float
    targets: int
    targets_flat: int
    token_reduction_mean: float
    partings: list[Parting]
    shape: ModelShape
    pays: bool
    reason: str


def inspect_samples(samples: Sequence[Sample], *, shape: ModelShape = DEFAULT_SHAPE) -> Inspection:
    """Builds one tree per group and counts.

    Args:
        samples: the sequences.
        shape: sizes of the model that the FLOP bound is for.

    Returns:
        The counts.

    Raises:
        ValueError: there is no sample, or only some samples of a group have keys.
    """
    if not samples:
        raise ValueError("samples must hold at least one sequence, got none")
    members: dict[Hashable, list[int]] = {}
    for index, sample in enumerate(samples):
        members.setdefault(sample.group, []).append(index)
    trees: list[PrefixTree] = []
    groups: list[GroupCount] = []
    for group, indices in members.items():
        own = [samples[index] for index in indices]
        keys = shared_keys(samples, indices)
        tree = build_prefix_tree([sample.tokens for sample in own], keys)
        targets, targets_flat = _count_targets(tree, own)
        trees.append(tree)
        groups.append(
            GroupCount(
                group=group,
                metrics=measure_tree(tree),
                flop_bound=flop_bound(tree, shape),
                targets=targets,
                targets_flat=targets_flat,
                partings=find_partings(tree, [sample.source for sample in own]),
            )
        )
    total = _sum([count.metrics for count in groups])
    bound, leafized = flop_bound(trees, shape), leafized_flop_bound(trees, shape)
    return Inspection(
        groups=groups,
        total=total,
        flop_bound=bound,
        leafized_flop_bound=leafized,
        targets=sum(count.targets for count in groups),
        targets_flat=sum(count.targets_flat for count in groups),
        token_reduction_mean=float(np.mean([c.metrics.token_reduction for c in groups])),
        partings=merge_partings(count.partings for count in groups),
        shape=shape,
        pays=bound >= PAYS_FROM,
        reason=_reason(bound, leafized, total.token_reduction),
    )


def _count_targets(tree: PrefixTree, samples: Sequence[Sample]) -> tuple[int, int]:
    indices, offsets = tree.all_positions()
    weights = np.concatenate([sample.weights for sample in samples])
    trained = weights != 0
    lengths = np.diff(offsets)
    trained[offsets[:-1][lengths > 0]] = False
    is_target = np.zeros(tree.num_tokens, bool)
    is_target[indices[trained]] = True
    return int(is_target.sum()), int(trained.sum())


def _sum(metrics: Sequence[TreeMetrics]) -> TreeMetrics:
    def total(name: str) -> int:
        return sum(getattr(one, name) for one in metrics)

    flat, tree = total("flat_tokens"), total("tree_tokens")
    pairs_flat, pairs_tree = total("attention_pairs_flat"), total("attention_pairs_tree")
    points = total("branch_points")
    children = sum(one.branching_mean * one.branch_points for one in metrics)
    return TreeMetrics(
        sequences=total("sequences"),
        roots=total("roots"),
        flat_tokens=flat,
        tree_tokens=tree,
        por=1 - tree / flat if flat else 0.0,
        token_reduction=flat / tree if tree else 1.0,
        attention_pairs_flat=pairs_flat,
        attention_pairs_tree=pairs_tree,
        attention_pair_ratio=pairs_flat / pairs_tree if pairs_tree else 1.0,
        nodes=total("nodes"),
        leaves=total("leaves"),
        runs=total("runs"),
        depth_max=max(one.depth_max for one in metrics),
        depth_nodes_max=max(one.depth_nodes_max for one in metrics),
        branch_points=points,
        branching_mean=children / points if points else 0.0,
        branching_max=max(one.branching_max for one in metrics),
    )


def _reason(bound: float, leafized: float, token_reduction: float) -> str:
    saved = f"{100 * (1 - 1 / bound):.0f} % of the floating-point work" if bound else "nothing"
    figures = f"FLOP bound {bound:.2f}, token reduction {token_reduction:.2f}"
    if bound < PAYS_FROM:
        return (
            f"does not pay: sharing saves {saved} ({figures}); below a bound of {PAYS_FROM} the "
            f"gain cannot be told from the spread between two runs, and many small branches may "
            f"cost more"
        )
    reason = f"pays: sharing saves {saved} ({figures}; it pays from a bound of {PAYS_FROM} on)"
    if leafized < PAYS_FROM:
        reason += (
            f"; but nearly all of it is in sequences that are prefixes of longer ones: leaving "
            f"these out and training their targets in the longest saves as much without a tree, "
            f"which adds a factor of {leafized:.2f} to that"
        )
    return reason
