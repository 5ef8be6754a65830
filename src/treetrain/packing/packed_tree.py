"""A prefix tree as the tensors a model's forward pass takes, one packed row.

What is trained in it is `targets`' affair; how attention is computed on it is the backends'.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from treetrain.errors import check_type
from treetrain.tree.prefix_tree import PrefixTree


@dataclass(frozen=True, eq=False)
class PackedTree:
    """A tree's packed row on a device.

    An ordinary object, hashable by identity, so that it travels as a keyword through a model's
    forward pass and through gradient checkpointing, which hand over unknown objects untouched.

    Attributes:
        tree: the prefix tree, on the host. Its first `ancestors` tokens are one path from a root
            and not part of the row: a partition reads them through its gateway.
        tokens: token ids in packed order, [1, T] int64.
        depth_positions: place of each token on its path, [1, T] int64; what position embeddings
            take.
        subtree_ends: packed index one past the last token below each token of the tree,
            [ancestors + T] int64.
        ancestors: tokens of the tree that stand before the row, 0 for a whole tree.
        plans: what attention backends and partitioned steps have worked out for this tree on this
            device, under keys of their own; it lives and dies with the packed tree. `to` starts
            with an empty one.
    """

    tree: PrefixTree
    tokens: Tensor
    depth_positions: Tensor
    subtree_ends: Tensor
    ancestors: int = 0
    plans: dict[Any, Any] = field(default_factory=dict[Any, Any], repr=False)

    @property
    def device(self) -> torch.device:
        """Device of the tensors."""
        return self.tokens.device

    @property
    def num_tokens(self) -> int:
        """Number of tokens T of the row."""
        return self.tree.num_tokens - self.ancestors

    def __repr__(self) -> str:
        return f"PackedTree({self.tree!r}, device={str(self.device)!r})"

    def to(self, device: torch.device | str) -> PackedTree:
        """The same tree on a device.

        Args:
            device: where the tensors shall live.

        Returns:
            Itself where it is there already, otherwise a new packed tree without plans.
        """
        tokens = self.tokens.to(device)
        if tokens is self.tokens:
            return self
        return PackedTree(
            tree=self.tree,
            tokens=tokens,
            depth_positions=self.depth_positions.to(device),
            subtree_ends=self.subtree_ends.to(device),
            ancestors=self.ancestors,
        )


@torch.inference_mode(False)
def pack_tree(
    tree: PrefixTree, device: torch.device | str | None = None, *, ancestors: int = 0
) -> PackedTree:
    """Make the packed row of a tree.

    Args:
        tree: a prefix tree, any number of roots.
        device: where the tensors shall live; None: the CPU.
        ancestors: tokens at the front of the tree, one path from a root, that are not part of the
            row.

    Returns:
        The packed tree.

    Example:
        >>> from treetrain.tree.build import build_prefix_tree
        >>> packed = pack_tree(build_prefix_tree([[1, 2, 3], [1, 2, 4, 5]]))
        >>> packed.tokens.tolist(), packed.depth_positions.tolist(), packed.subtree_ends.tolist()
        ([[1, 2, 4, 5, 3]], [[0, 1, 2, 3, 2]], [5, 5, 4, 4, 5])
    """
    check_type("tree", tree, PrefixTree, "a PrefixTree from build_prefix_tree(sequences)")
    # The tree's arrays are read-only and torch tensors are not, so the tensors are copies.
    return PackedTree(
        tree=tree,
        tokens=torch.tensor(tree.tokens[ancestors:], device=device)[None],
        depth_positions=torch.tensor(tree.depth_positions[ancestors:], device=device)[None],
        subtree_ends=torch.tensor(tree.token_subtree_ends, device=device),
        ancestors=ancestors,
    )
