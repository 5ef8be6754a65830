"""What sharing saves: counts of a tree, and the bound it sets on any speed-up.

Everything follows from the arrays of the tree; whether training pays on a machine is measured
elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from treetrain.errors import check_type
from treetrain.tree.prefix_tree import PrefixTree
from treetrain.tree.ranges import sum_along_paths


@dataclass(frozen=True)
class TreeMetrics:
    """Counts and ratios of one prefix tree.

    Without a token there is nothing to share: the ratios are then 1, POR is 0.

    Attributes:
        sequences: number of sequences, duplicates and empty ones included.
        roots: number of roots; one sequence at least has a token for each.
        flat_tokens: sum of the sequences' lengths.
        tree_tokens: tokens computed once.
        por: part of the flat tokens that is not computed again, 1 - tree / flat.
        token_reduction: flat over tree tokens; no measure of time.
        attention_pairs_flat: (query, key) pairs of causal attention over each sequence alone.
        attention_pairs_tree: the same over the tree.
        attention_pair_ratio: flat over tree pairs.
        nodes: number of nodes.
        leaves: nodes without children.
        runs: stretches of packed order in which each node is its predecessor's child.
        depth_max: tokens of the longest path.
        depth_nodes_max: most nodes on one path.
        branch_points: nodes with two or more children.
        branching_mean: children of a branch point on average; 0 without one.
        branching_max: most children of one branch point; 0 without one.
    """

    sequences: int
    roots: int
    flat_tokens: int
    tree_tokens: int
    por: float
    token_reduction: float
    attention_pairs_flat: int
    attention_pairs_tree: int
    attention_pair_ratio: float
    nodes: int
    leaves: int
    runs: int
    depth_max: int
    depth_nodes_max: int
    branch_points: int
    branching_mean: float
    branching_max: int


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a transformer that decide how its work divides.

    Attributes:
        parameters: parameters used for each token, without embeddings.
        layers: attention layers.
        heads: query heads of a layer.
        head_size: size of one head.

    Raises:
        ValueError: a size is negative, or there is no work at all.
    """

    parameters: int
    layers: int
    heads: int
    head_size: int

    def __post_init__(self) -> None:
        for name in ("parameters", "layers", "heads", "head_size"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        if not self.parameters and not self.layers * self.heads * self.head_size:
            raise ValueError("shape must have parameters or attention, got neither")


def measure_tree(tree: PrefixTree) -> TreeMetrics:
    """Count what a tree holds and what it saves.

    Args:
        tree: the tree, or a forest of several.

    Returns:
        Its counts and ratios.

    Example:
        >>> metrics = measure_tree(build_prefix_tree([[1, 2, 3], [1, 2, 4]]))
        >>> metrics.flat_tokens, metrics.tree_tokens, metrics.token_reduction
        (6, 4, 1.5)
    """
    check_type("tree", tree, PrefixTree, "a PrefixTree from build_prefix_tree(sequences)")
    flat_tokens, flat_pairs = _flat_work(tree)
    tree_pairs = _tree_pairs(tree)
    nodes = np.arange(tree.num_nodes, dtype=np.int64)
    children = np.bincount(tree.parents[tree.parents >= 0], minlength=tree.num_nodes)
    branching = children[children >= 2]
    return TreeMetrics(
        sequences=tree.num_sequences,
        roots=int((tree.parents < 0).sum()),
        flat_tokens=flat_tokens,
        tree_tokens=tree.num_tokens,
        por=1 - tree.num_tokens / flat_tokens if flat_tokens else 0.0,
        token_reduction=_ratio(flat_tokens, tree.num_tokens),
        attention_pairs_flat=flat_pairs,
        attention_pairs_tree=tree_pairs,
        attention_pair_ratio=_ratio(flat_pairs, tree_pairs),
        nodes=tree.num_nodes,
        leaves=int((children == 0).sum()),
        runs=int((tree.run_heads == nodes).sum()),
        depth_max=int(tree.sequence_lengths.max(initial=0)),
        depth_nodes_max=_most_nodes_on_a_path(tree),
        branch_points=len(branching),
        branching_mean=float(branching.mean()) if len(branching) else 0.0,
        branching_max=int(branching.max(initial=0)),
    )


def training_flops(tokens: int, pairs: int, shape: ModelShape, *, recompute: bool = False) -> int:
    """Return the floating-point work of one training step, forward and backward.

    Args:
        tokens: tokens that are computed.
        pairs: (query, key) pairs of attention.
        shape: the model's sizes.
        recompute: whether activations are computed again in the backward pass.

    Returns:
        Floating-point operations, without those of the head.
    """
    for_parameters, for_attention = (8, 18) if recompute else (6, 14)
    width = shape.layers * shape.heads * shape.head_size
    return for_parameters * shape.parameters * tokens + for_attention * width * pairs


def flop_bound(
    trees: PrefixTree | Iterable[PrefixTree], shape: ModelShape, *, recompute: bool = False
) -> float:
    """Return floating-point work of separate sequences over that of their trees.

    A token at depth position D - 1 costs `6 P + 14 L H d D`, forward and backward, or
    `8 P + 18 L H d D` where activations are recomputed; separate sequences pay it once for each
    path through the token. The head is left out: it works on predictors that have targets.

    Args:
        trees: one tree or several.
        shape: the model's sizes; attention over the whole path is assumed.
        recompute: whether activations are computed again in the backward pass.

    Returns:
        The FLOP bound, what a measured speed-up is held against; 1 without tokens.
    """
    check_type("shape", shape, ModelShape, "a ModelShape")
    work = [(*_flat_work(tree), tree) for tree in _as_list(trees)]
    flat = training_flops(
        sum(w[0] for w in work), sum(w[1] for w in work), shape, recompute=recompute
    )
    return _ratio(flat, _tree_flops([w[2] for w in work], shape, recompute=recompute))


def leafized_flop_bound(
    trees: PrefixTree | Iterable[PrefixTree], shape: ModelShape, *, recompute: bool = False
) -> float:
    """Return work of the sequences that are no prefix of another over that of their trees.

    This opponent computes each leaf's sequence alone, once: a sequence that is a prefix of another
    is dropped, its loss attached to the longer one, and of equal sequences one is kept.

    Args:
        trees: one tree or several.
        shape: the model's sizes; attention over the whole path is assumed.
        recompute: whether activations are computed again in the backward pass.

    Returns:
        The FLOP bound against that opponent; 1 without tokens.
    """
    check_type("shape", shape, ModelShape, "a ModelShape")
    several = _as_list(trees)
    tokens = pairs = 0
    for tree in several:
        is_leaf = np.bincount(tree.parents[tree.parents >= 0], minlength=tree.num_nodes) == 0
        lengths = (tree.depth_starts + tree.node_lengths)[is_leaf]
        tokens += int(lengths.sum())
        pairs += int((lengths * (lengths + 1) // 2).sum())
    flat = training_flops(tokens, pairs, shape, recompute=recompute)
    return _ratio(flat, _tree_flops(several, shape, recompute=recompute))


def _as_list(trees: PrefixTree | Iterable[PrefixTree]) -> list[PrefixTree]:
    check_type("trees", trees, (PrefixTree, Iterable), "a prefix tree or a list of them")
    several = [trees] if isinstance(trees, PrefixTree) else list(trees)
    for index, tree in enumerate(several):
        check_type(f"trees[{index}]", tree, PrefixTree, "a PrefixTree")
    return several


def _flat_work(tree: PrefixTree) -> tuple[int, int]:
    lengths = tree.sequence_lengths
    return int(lengths.sum()), int((lengths * (lengths + 1) // 2).sum())


def _tree_pairs(tree: PrefixTree) -> int:
    first = tree.depth_starts + 1
    last = tree.depth_starts + tree.node_lengths
    return int(((first + last) * tree.node_lengths // 2).sum())


def _tree_flops(trees: list[PrefixTree], shape: ModelShape, *, recompute: bool) -> int:
    tokens = sum(tree.num_tokens for tree in trees)
    return training_flops(tokens, sum(map(_tree_pairs, trees)), shape, recompute=recompute)


def _ratio(flat: int, tree: int) -> float:
    return flat / tree if tree else 1.0


def _most_nodes_on_a_path(tree: PrefixTree) -> int:
    ends = np.searchsorted(tree.node_starts[:-1], tree.subtree_ends)
    return int(sum_along_paths(np.ones(tree.num_nodes, np.int64), ends).max(initial=0))
