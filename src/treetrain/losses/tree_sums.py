"""Sums of numbers per token over the paths of a tree, on the device where the numbers live.

Nodes are numbered in packed order, so that a node's subtree is one interval of nodes. A sum over
all ancestors and one over all descendants are then one cumulative sum each, however deep the tree.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from treetrain.tree.prefix_tree import PrefixTree


@dataclass(frozen=True, eq=False)
class TreeSums:
    """What sums over paths need of a tree, on a device; made by `make_tree_sums`.

    Attributes:
        token_nodes: node of each packed token, [T] int64.
        node_ends: one past the last node of each node's subtree, [N] int64.
        path_counts: number of sequences through each node, [N, 1] float64.
        sequence_nodes: node in which each sequence ends, empty ones left out, [S] int64.
        sequence_lengths: tokens of these sequences, [S, 1] float64.
    """

    token_nodes: Tensor
    node_ends: Tensor
    path_counts: Tensor
    sequence_nodes: Tensor
    sequence_lengths: Tensor

    @property
    def device(self) -> torch.device:
        """Device of the tensors."""
        return self.token_nodes.device

    def count_choices(self, experts: Tensor, num_experts: int) -> Tensor:
        """Count how often the tokens of each node chose each expert.

        Args:
            experts: the experts of each packed token, [T, k] int64, 0 to X - 1.
            num_experts: number of experts X.

        Returns:
            The counts, each token once, [N, X] float64.
        """
        experts = experts.to(self.device)
        places = (self.token_nodes[:, None] * num_experts + experts).flatten()
        counts = self.path_counts.new_zeros(len(self.path_counts) * num_experts)
        counts.index_add_(0, places, counts.new_ones(len(places)))
        return counts.view(-1, num_experts)

    def sum_along_paths(self, values: Tensor) -> Tensor:
        """Sum numbers of nodes along each sequence's path.

        Args:
            values: numbers of each node, [N, X] float64.

        Returns:
            Their sum over the nodes of each sequence, [S, X] float64.
        """
        steps = torch.cat([values, values.new_zeros(1, values.shape[1])])
        steps.index_add_(0, self.node_ends, -values)
        return steps.cumsum(0)[self.sequence_nodes]

    def sum_over_sequences(self, values: Tensor) -> Tensor:
        """Sum numbers of sequences over those through each node.

        Args:
            values: numbers of each sequence, [S, X] float64.

        Returns:
            Their sum over the sequences through each node, [N, X] float64.
        """
        sums = values.new_zeros(len(self.node_ends) + 1, values.shape[1])
        sums.index_add_(0, self.sequence_nodes + 1, values)
        sums = sums.cumsum(0)
        return sums[self.node_ends] - sums[:-1]


def weigh_tokens(values: Tensor, factors: Tensor, nodes: Tensor) -> Tensor:
    """Sum numbers of tokens, each times the factor of its node.

    Args:
        values: numbers of each token of a row, [T, X], with their graph.
        factors: factors of each node of the batch's tree, [N, X] float64.
        nodes: node of each token of the row, [T] int64.

    Returns:
        The sum, a scalar, dtype of the numbers.
    """
    return (values * factors.index_select(0, nodes).to(values.dtype)).sum()


@torch.inference_mode(False)
def make_tree_sums(tree: PrefixTree, device: torch.device | str) -> TreeSums:
    """Copy what sums over paths need to a device.

    Args:
        tree: the prefix tree.
        device: where the sums are made.

    Returns:
        The tensors.

    Example:
        >>> from treetrain.tree.build import build_prefix_tree
        >>> sums = make_tree_sums(build_prefix_tree([[1, 2], [1, 2, 3], [1, 4]]), "cpu")
        >>> counts = sums.count_choices(torch.tensor([[0], [1], [1], [0]]), 2)
        >>> counts.tolist()  # of tokens 1; 2; 3; 4
        [[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [1.0, 0.0]]
        >>> sums.sum_along_paths(counts).tolist()
        [[1.0, 1.0], [1.0, 2.0], [2.0, 0.0]]
        >>> sums.sum_over_sequences(torch.tensor([[1.0], [10.0], [100.0]])).tolist()
        [[111.0], [11.0], [10.0], [100.0]]
    """
    ended = tree.sequence_nodes >= 0
    node_ends = np.searchsorted(tree.node_starts, tree.subtree_ends)
    return TreeSums(
        token_nodes=torch.tensor(tree.token_nodes, device=device),
        node_ends=torch.tensor(node_ends, dtype=torch.int64, device=device),
        path_counts=torch.tensor(tree.path_counts, dtype=torch.float64, device=device)[:, None],
        sequence_nodes=torch.tensor(tree.sequence_nodes[ended], device=device),
        sequence_lengths=torch.tensor(
            tree.sequence_lengths[ended], dtype=torch.float64, device=device
        )[:, None],
    )
