"""Runs of a prefix tree, and the slices that describe its visibility.

A run is a stretch of packed order in which each node is its predecessor's child; the runs tile
packed order, one per leaf. A slice is one rectangle of queries x keys. How a backend groups slices
into kernel calls is its own affair.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from treetrain.tree.prefix_tree import Ints, PrefixTree


@dataclass(frozen=True, eq=False)
class Runs:
    """The runs of a tree in packed order.

    Attributes:
        starts: packed index of each run's first token, [K].
        ends: packed index one past each run's last token, [K]; the next run starts there.
        parents: index of the run each run hangs from, [K]; -1 for a run that starts at a root.
        branch_ends: packed index one past the token each run hangs from, [K]; 0 for a root's run.
        subtree_ends: packed index one past the last token below each run's first token, [K].
    """

    starts: Ints
    ends: Ints
    parents: Ints
    branch_ends: Ints
    subtree_ends: Ints

    def __len__(self) -> int:
        return len(self.starts)


@dataclass(frozen=True, eq=False)
class Slices:
    """Disjoint rectangles of queries x keys whose union is a tree's visibility.

    A causal slice is square and holds the pairs with key <= query; a full slice holds every pair.

    Attributes:
        q_starts: packed index of the first query, [n].
        q_ends: packed index one past the last query, [n].
        k_starts: packed index of the first key, [n].
        k_ends: packed index one past the last key, [n].
        causal: whether the slice is causal, bool [n]; full otherwise.
    """

    q_starts: Ints
    q_ends: Ints
    k_starts: Ints
    k_ends: Ints
    causal: np.ndarray

    def __len__(self) -> int:
        return len(self.q_starts)

    @property
    def pairs(self) -> int:
        """Number of (query, key) pairs in all slices; equals the sum of depth position + 1."""
        queries = self.q_ends - self.q_starts
        keys = self.k_ends - self.k_starts
        return int(np.where(self.causal, queries * (queries + 1) // 2, queries * keys).sum())


def find_runs(tree: PrefixTree) -> Runs:
    """Find the runs of a tree.

    Args:
        tree: the prefix tree, any number of roots.

    Returns:
        Its runs in packed order, as many as leaves.

    Example:
        >>> from treetrain.tree.build import build_prefix_tree
        >>> runs = find_runs(build_prefix_tree([[1, 2, 3, 4, 5], [1, 2, 3, 6, 7, 8, 9]]))
        >>> runs.starts.tolist(), runs.ends.tolist(), runs.branch_ends.tolist()
        ([0, 7], [7, 9], [0, 3])
    """
    node_ends = tree.node_starts[1:]
    heads = np.flatnonzero(tree.parents != np.arange(-1, tree.num_nodes - 1))
    if tree.num_nodes and (len(heads) == 0 or heads[0] != 0):
        # Node 0 is a root and its parent, -1, is what "the node before it" would be.
        heads = np.concatenate([[0], heads])
    starts = tree.node_starts[heads]
    parent_nodes = tree.parents[heads]
    hanging = parent_nodes >= 0
    branch_ends = np.where(hanging, node_ends[parent_nodes], 0)
    parents = np.where(hanging, np.searchsorted(starts, branch_ends - 1, side="right") - 1, -1)
    return Runs(
        starts=starts,
        ends=np.append(starts[1:], tree.num_tokens)[: len(starts)],
        parents=parents,
        branch_ends=branch_ends,
        subtree_ends=tree.subtree_ends[heads],
    )


def find_slices(tree: PrefixTree) -> Slices:
    """Describe a tree's visibility by 2K - R slices for K leaves and R roots.

    One causal slice for each run, then one full slice for each run that hangs from another: the
    whole subtree hanging there reads the parent run up to the branch point.

    Args:
        tree: the prefix tree, any number of roots.

    Returns:
        The slices: causal ones in packed order, then full ones in packed order.

    Example:
        >>> from treetrain.tree.build import build_prefix_tree
        >>> slices = find_slices(build_prefix_tree([[1, 2, 3, 4, 5], [1, 2, 3, 6, 7, 8, 9]]))
        >>> len(slices), slices.pairs
        (3, 37)
    """
    runs = find_runs(tree)
    hanging = np.flatnonzero(runs.parents >= 0)
    return Slices(
        q_starts=np.concatenate([runs.starts, runs.starts[hanging]]),
        q_ends=np.concatenate([runs.ends, runs.subtree_ends[hanging]]),
        k_starts=np.concatenate([runs.starts, runs.starts[runs.parents[hanging]]]),
        k_ends=np.concatenate([runs.ends, runs.branch_ends[hanging]]),
        causal=np.arange(len(runs) + len(hanging)) < len(runs),
    )
