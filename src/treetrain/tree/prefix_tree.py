"""The compressed prefix tree as frozen flat arrays.

This file holds the type and what follows from its arrays alone; `build` makes trees, `runs` cuts them
into runs and slices, `metrics` counts what sharing saves.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class PrefixTree:
    """Sequences that share prefixes, every shared token once, in packed order.

    Packed order is depth-first with the largest subtree first, so that a token's descendants are one
    interval of packed indices and packed token q may read packed token k exactly when
    `k <= q < token_subtree_ends[k]`. Nodes are numbered in packed order. All arrays are int64 and
    read-only.

    Attributes:
        tokens: token ids in packed order, [T].
        keys: second integer of each token that had to be equal for tokens to merge, [T], or None.
        node_starts: packed index of each node's first token, [N + 1]; the last entry is T.
        parents: node index of each node's parent, [N]; -1 for a root.
        path_counts: number of sequences through each node, with multiplicity, [N].
        depth_starts: depth position of each node's first token, [N].
        subtree_ends: packed index one past the last token of each node's subtree, [N].
        sequence_nodes: node in which each sequence ends, [S], input order; -1 for an empty sequence.
    """

    tokens: Ints
    keys: Ints | None
    node_starts: Ints
    parents: Ints
    path_counts: Ints
    depth_starts: Ints
    subtree_ends: Ints
    sequence_nodes: Ints

    def __post_init__(self) -> None:
        for array in (
            self.tokens,
            self.keys,
            self.node_starts,
            self.parents,
            self.path_counts,
            self.depth_starts,
            self.subtree_ends,
            self.sequence_nodes,
        ):
            if array is not None:
                array.flags.writeable = False

    def __repr__(self) -> str:
        return (
            f"PrefixTree({self.num_sequences} sequences, {self.num_nodes} nodes, "
            f"{int(self.sequence_lengths.sum())} flat tokens, {self.num_tokens} tree tokens)"
        )

    @property
    def num_sequences(self) -> int:
        """Number of sequences S, empty ones and duplicates included."""
        return len(self.sequence_nodes)

    @property
    def num_tokens(self) -> int:
        """Number of tree tokens T."""
        return len(self.tokens)

    @property
    def num_nodes(self) -> int:
        """Number of nodes N."""
        return len(self.parents)

    @cached_property
    def node_lengths(self) -> Ints:
        """Tokens of each node, [N]."""
        return _frozen(np.diff(self.node_starts))

    @cached_property
    def sequence_lengths(self) -> Ints:
        """Tokens of each sequence, [S], input order."""
        if self.num_nodes == 0:
            return _frozen(np.zeros(self.num_sequences, np.int64))
        lengths = self.depth_starts[self.sequence_nodes] + self.node_lengths[self.sequence_nodes]
        return _frozen(np.where(self.sequence_nodes >= 0, lengths, 0))

    @cached_property
    def token_nodes(self) -> Ints:
        """Node of each packed token, [T]."""
        return _frozen(np.repeat(np.arange(self.num_nodes, dtype=np.int64), self.node_lengths))

    @cached_property
    def depth_positions(self) -> Ints:
        """Place of each packed token on its path, [T]."""
        shift = self.depth_starts - self.node_starts[:-1]
        return _frozen(np.arange(self.num_tokens, dtype=np.int64) + np.repeat(shift, self.node_lengths))

    @cached_property
    def token_subtree_ends(self) -> Ints:
        """Packed index one past the last token below each packed token, [T]."""
        return _frozen(np.repeat(self.subtree_ends, self.node_lengths))

    @cached_property
    def token_path_counts(self) -> Ints:
        """Number of sequences through each packed token, [T]."""
        return _frozen(np.repeat(self.path_counts, self.node_lengths))

    @cached_property
    def predecessors(self) -> Ints:
        """Packed index of the token before each packed token on its path, [T]; -1 at a root's first."""
        before = np.arange(-1, self.num_tokens - 1, dtype=np.int64)
        last = self.node_starts[1:] - 1
        before[self.node_starts[:-1]] = np.where(self.parents >= 0, last[self.parents], -1)
        return _frozen(before)
