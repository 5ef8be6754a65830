"""Loss terms of a packed tree: which packed index predicts which token, with what weight, for whom.

Everything here lives on the host as exact integers and float64; `TargetTensors` is the part that
the head needs on a device. Labels are never shifted in packed order: a token's predictor is its
predecessor on the path.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from treetrain.tree.prefix_tree import Ints, PrefixTree

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class TargetTensors:
    """What the head and the recovery of per-sequence values read on a device, all int64.

    Attributes:
        distinct_predictors: packed index of each predictor that has targets, ascending, [P].
        tokens: token id of each target, [M].
        predictor_of_target: index into `distinct_predictors` of each target, ascending, [M].
        edge_targets: target of each flat edge, [E]; M, one past the last, where it has none.
    """

    distinct_predictors: Tensor
    tokens: Tensor
    predictor_of_target: Tensor
    edge_targets: Tensor


@dataclass(frozen=True, eq=False)
class Targets:
    """Distinct targets of a packed tree and the flat edges that share them.

    A flat edge is one (sequence, place >= 1): the token at that place, predicted from the one
    before. A target is what edges of several sequences at one packed index have in common. Targets
    stand in the order of their predictors, then of their packed indices, so that the targets of a
    stretch of predictors are a stretch too. Arrays are numpy arrays on the host.

    Attributes:
        packed_indices: packed index of each target's token, [M] int64.
        predictors: packed index whose output predicts it, [M] int64.
        tokens: token id, [M] int64.
        weights: loss weight: sum over the target's sequences of their own weights, [M] float64.
        distinct_predictors: packed index of each predictor that has targets, ascending, [P] int64.
        predictor_of_target: index into `distinct_predictors` of each target, [M] int64.
        target_offsets: first target of each distinct predictor, [P + 1] int64; the last entry is M.
        edge_targets: target of each flat edge, [E] int64; -1 where the token is not a target.
        edge_weights: each flat edge's own weight, [E] float64.
        sequence_offsets: first flat edge of each sequence, [S + 1] int64; the last entry is E.
    """

    packed_indices: Ints
    predictors: Ints
    tokens: Ints
    weights: Floats
    distinct_predictors: Ints
    predictor_of_target: Ints
    target_offsets: Ints
    edge_targets: Ints
    edge_weights: Floats
    sequence_offsets: Ints

    def __len__(self) -> int:
        """Number of targets M."""
        return len(self.tokens)

    @property
    def edge_lengths(self) -> Ints:
        """Flat edges of each sequence, max(L - 1, 0), [S]."""
        return np.diff(self.sequence_offsets)

    def sum_edges(self, values: Floats) -> Floats:
        """Sum values of flat edges onto their targets.

        Args:
            values: one number per flat edge, [E] float64; those of edges without a target are left
                out.

        Returns:
            One sum per target, [M] float64.

        Raises:
            ValueError: there is not one value per flat edge.
        """
        if values.shape != self.edge_targets.shape:
            raise ValueError(
                f"values must have one entry per flat edge, [{len(self.edge_targets)}], got shape "
                f"{values.shape}"
            )
        return _sum_onto(self.edge_targets, values, len(self))

    @torch.inference_mode(False)
    def tensors(self, device: torch.device | str) -> TargetTensors:
        """Copy what the head and the recovery need to a device.

        Args:
            device: where the tensors shall live.

        Returns:
            The tensors.
        """
        last = np.where(self.edge_targets >= 0, self.edge_targets, len(self))
        return TargetTensors(
            distinct_predictors=torch.tensor(self.distinct_predictors, device=device),
            tokens=torch.tensor(self.tokens, device=device),
            predictor_of_target=torch.tensor(self.predictor_of_target, device=device),
            edge_targets=torch.tensor(last, device=device),
        )


@dataclass(frozen=True, eq=False)
class TargetPart:
    """Some of a batch's targets: those whose predictors stand in one packed row.

    Attributes:
        targets: these targets with the flat edges that share them; packed indices and predictors
            count in the row, and `packed_indices` is -1 for a token that stands in another one.
            Where it is not the whole batch, edges without a target and sequences without an edge
            are left out.
        places: which of the batch's targets each is, [M] int64.
        edges: which of the batch's flat edges each is, [E] int64, ascending.
    """

    targets: Targets
    places: Ints
    edges: Ints


def find_targets(tree: PrefixTree, weights: Floats, *, untrained: bool = False) -> Targets:
    """Find the distinct targets of a tree.

    A token is a target if at least one sequence through it gives it a weight other than 0, even
    where the weights of several sequences cancel.

    Args:
        tree: the prefix tree.
        weights: weight of each token of each sequence as a target, one sequence after the other in
            input order, [sum of L] float64. The weight of a sequence's first token is not used.
        untrained: whether tokens that nobody trains are targets too, with weight 0.

    Returns:
        The targets.

    Raises:
        ValueError: there is not one weight per flat token.

    Example:
        >>> from treetrain.tree.build import build_prefix_tree
        >>> tree = build_prefix_tree([[1, 2, 3, 4, 5], [1, 2, 3, 6, 7], [1, 2, 3, 6, 7, 8, 9]])
        >>> targets = find_targets(tree, np.ones(17))
        >>> for row in zip(targets.predictors, targets.tokens, targets.weights): print(*row)
        0 2 3.0
        1 3 3.0
        2 6 2.0
        2 4 1.0
        3 7 2.0
        4 8 1.0
        5 9 1.0
        7 5 1.0
    """
    places, offsets = tree.all_positions()
    if weights.shape != places.shape:
        raise ValueError(
            f"weights must have one entry per flat token, [{len(places)}], got shape "
            f"{weights.shape}"
        )
    lengths = np.diff(offsets)
    is_edge = np.ones(len(places), bool)
    is_edge[offsets[:-1][lengths > 0]] = False
    edge_places = places[is_edge]
    edge_weights = weights[is_edge]

    is_target = np.zeros(tree.num_tokens, bool)
    is_target[edge_places if untrained else edge_places[edge_weights != 0]] = True
    packed_indices = np.flatnonzero(is_target)
    predictors = tree.predecessors[packed_indices]
    order = np.argsort(predictors, kind="stable")
    packed_indices, predictors = packed_indices[order], predictors[order]
    target_of_token = np.full(tree.num_tokens, -1, np.int64)
    target_of_token[packed_indices] = np.arange(len(packed_indices))
    edge_targets = target_of_token[edge_places]

    distinct, firsts, inverse = np.unique(predictors, return_index=True, return_inverse=True)
    return Targets(
        packed_indices=packed_indices,
        predictors=predictors,
        tokens=tree.tokens[packed_indices],
        weights=_sum_onto(edge_targets, edge_weights, len(packed_indices)),
        distinct_predictors=distinct,
        predictor_of_target=inverse.astype(np.int64, copy=False),
        target_offsets=np.append(firsts, len(packed_indices)).astype(np.int64, copy=False),
        edge_targets=edge_targets,
        edge_weights=edge_weights,
        sequence_offsets=np.concatenate([[0], np.cumsum(np.maximum(lengths - 1, 0))]).astype(
            np.int64, copy=False
        ),
    )


def _sum_onto(places: Ints, values: Floats, count: int) -> Floats:
    """Sum values onto places 0 .. count - 1, leaving out those at -1."""
    kept = places >= 0
    sums = np.bincount(places[kept], weights=values[kept], minlength=count)
    return sums.astype(np.float64, copy=False)
