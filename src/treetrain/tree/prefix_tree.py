"""The compressed prefix tree as frozen flat arrays.

This file holds the type and what follows from its arrays alone; `build` and `nodes` make trees,
`runs` cuts them into runs and slices, `metrics` counts what sharing saves.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from treetrain.tree.ranges import Ints, join_ranges, offsets_of


@dataclass(frozen=True, eq=False)
class PrefixTree:
    """Sequences that share prefixes, every shared token once, in packed order.

    Packed order is depth-first with the largest subtree first, so that a token's descendants are
    one interval of packed indices and packed token q may read packed token k exactly when
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
        sequence_nodes: node in which each sequence ends, [S], input order; -1 for an empty one.
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
        return _frozen(
            np.arange(self.num_tokens, dtype=np.int64) + np.repeat(shift, self.node_lengths)
        )

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
        """Packed index of the token before each on its path, [T]; -1 at a root's first token."""
        before = np.arange(-1, self.num_tokens - 1, dtype=np.int64)
        last = self.node_starts[1:] - 1
        before[self.node_starts[:-1]] = np.where(self.parents >= 0, last[self.parents], -1)
        return _frozen(before)

    @cached_property
    def run_heads(self) -> Ints:
        """First node of the run that holds each node, [N]."""
        nodes = np.arange(self.num_nodes, dtype=np.int64)
        heads = np.where(self.parents == nodes - 1, 0, nodes)
        return _frozen(np.maximum.accumulate(heads))

    def positions(self, sequence: int) -> Ints:
        """Return where the tokens of one sequence stand.

        Args:
            sequence: index of the sequence in input order; negative counts from the end.

        Returns:
            Packed index of each of its tokens in order, [L], int64.

        Raises:
            IndexError: there is no such sequence.

        Example:
            >>> build_prefix_tree([[1, 2, 3], [1, 2, 4, 5]]).positions(0).tolist()
            [0, 1, 4]
        """
        if not -self.num_sequences <= sequence < self.num_sequences:
            raise IndexError(
                f"sequence must be an index into {self.num_sequences} sequences, got {sequence}"
            )
        pieces: list[Ints] = []
        node = int(self.sequence_nodes[sequence])
        while node >= 0:
            head = int(self.run_heads[node])
            start, end = int(self.node_starts[head]), int(self.node_starts[node + 1])
            pieces.append(np.arange(start, end, dtype=np.int64))
            node = int(self.parents[head])
        return np.concatenate(pieces[::-1]) if pieces else np.zeros(0, np.int64)

    def all_positions(self) -> tuple[Ints, Ints]:
        """Return where the tokens of every sequence stand, sequence after sequence.

        Returns:
            Packed indices, [sum of lengths], int64, and the offsets at which each sequence's start,
            [S + 1], int64: sequence s has `indices[offsets[s] : offsets[s + 1]]`.
        """
        offsets = offsets_of(self.sequence_lengths)
        sequences = np.flatnonzero(self.sequence_nodes >= 0)
        nodes = self.sequence_nodes[sequences]
        places: list[Ints] = []
        starts: list[Ints] = []
        lengths: list[Ints] = []
        # A path changes runs at most log2(T) times: few rounds, however deep the tree.
        while len(sequences):
            heads = self.run_heads[nodes]
            places.append(offsets[sequences] + self.depth_starts[heads])
            starts.append(self.node_starts[heads])
            lengths.append(self.node_starts[nodes + 1] - self.node_starts[heads])
            nodes = self.parents[heads]
            sequences, nodes = sequences[nodes >= 0], nodes[nodes >= 0]
        if not places:
            return np.zeros(0, np.int64), offsets
        order = np.argsort(np.concatenate(places))
        return join_ranges(np.concatenate(starts)[order], np.concatenate(lengths)[order]), offsets


def _frozen(array: Ints) -> Ints:
    array.flags.writeable = False
    return array
