"""Samples as one packed row: one tree per group, targets, and the way back to the caller's order.

`budget` cuts many samples into several such batches.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from treetrain.data.sample import Sample, shared_keys
from treetrain.errors import check_type
from treetrain.packing.packed_tree import PackedTree, pack_tree
from treetrain.packing.targets import Targets, TargetTensors, find_targets
from treetrain.tree.build import build_prefix_tree, concatenate_trees
from treetrain.tree.prefix_tree import Ints, PrefixTree


@dataclass(frozen=True, eq=False)
class Batch:
    """Sequences that go through the model together as one packed row.

    Attributes:
        packed: the packed row: every group's tree, one after the other.
        targets: the distinct targets that at least one sequence trains, and the flat edges.
        samples: the sequences, S of them, in the caller's order.
        indices: which of the caller's samples each sequence is, [S] int64, ascending.
        duplicated_tokens: tree tokens that this batch computes again because a group larger than
            the token budget was split and an earlier batch holds the same prefix.
        exceeds_budget: whether the batch is a sequence, or a group that was not to be split, larger
            than the token budget.
    """

    packed: PackedTree
    targets: Targets
    samples: tuple[Sample, ...]
    indices: Ints
    duplicated_tokens: int = 0
    exceeds_budget: bool = False

    @property
    def tree(self) -> PrefixTree:
        """The prefix tree of the row, on the host; its sequences are the batch's, in order."""
        return self.packed.tree

    @property
    def device(self) -> torch.device:
        """Device of the packed row."""
        return self.packed.device

    @property
    def num_sequences(self) -> int:
        """Number of sequences S."""
        return len(self.samples)

    @property
    def num_tokens(self) -> int:
        """Number of tree tokens T."""
        return self.packed.num_tokens

    @property
    def trajectories(self) -> list[tuple[Hashable, Hashable] | None]:
        """(group, trajectory) of each sequence; None where the sample names no trajectory."""
        return [
            None if sample.trajectory is None else (sample.group, sample.trajectory)
            for sample in self.samples
        ]

    @cached_property
    def all_targets(self) -> Targets:
        """Every token with a predecessor as a target, trained or not."""
        return find_targets(self.tree, flat_weights(self.samples), untrained=True)

    @cached_property
    def target_tensors(self) -> TargetTensors:
        """`targets` on the batch's device."""
        return self.targets.tensors(self.device)

    @cached_property
    def all_target_tensors(self) -> TargetTensors:
        """`all_targets` on the batch's device."""
        return self.all_targets.tensors(self.device)

    @cached_property
    def flat_places(self) -> Tensor:
        """Packed index of each token of each sequence, [sum of L] int64, on the batch's device."""
        with torch.inference_mode(False):
            return torch.tensor(self.tree.all_positions()[0], device=self.device)

    def __repr__(self) -> str:
        return (
            f"Batch({self.num_sequences} sequences, {int(self.tree.sequence_lengths.sum())} flat "
            f"tokens, {self.num_tokens} tree tokens, {len(self.targets)} targets, "
            f"device={str(self.device)!r})"
        )

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on a device.

        Args:
            device: where the tensors shall live.

        Returns:
            Itself where it is there already, otherwise a new batch.
        """
        packed = self.packed.to(device)
        return self if packed is self.packed else dataclasses.replace(self, packed=packed)


def pack(samples: Iterable[Sample | ArrayLike]) -> Batch:
    """Pack samples into one row, one tree per group.

    Groups stand in order of first appearance; samples without a group are one group. Samples of
    different groups share no tokens and do not see each other. Sequences keep the caller's order.

    Args:
        samples: samples, or bare token ids (list, array or tensor), of which every token is
            trained.

    Returns:
        The batch, on the CPU.

    Example:
        >>> pack([[1, 2, 3, 4], [1, 2, 3, 4, 5, 6]])
        Batch(2 sequences, 10 flat tokens, 6 tree tokens, 5 targets, device='cpu')
    """
    checked = as_samples(samples)
    members = group_samples(checked)
    return assemble(checked, [(group, build_group_tree(checked, group)) for group in members])


def as_samples(samples: Iterable[Sample | ArrayLike]) -> list[Sample]:
    """Check a caller's samples and make samples of bare token ids.

    Args:
        samples: samples or bare token ids.

    Returns:
        The samples, in order.

    Raises:
        TypeError: they are no list, or one is no sample and no row; names the first.
        ValueError: there are none.
    """  # noqa: DOC503 (an iterator raises what it raises)
    expected = "a list of samples or of rows of token ids"
    check_type("samples", samples, Iterable, expected)
    try:
        given: list[Any] = list(samples)
    except (RuntimeError, TypeError) as error:
        if not hasattr(samples, "__array__"):
            raise  # an iterator's own
        raise TypeError(f"samples must be {expected}, got {type(samples).__name__}") from error
    if any(isinstance(samples, kind) for kind in (str, bytes, Mapping, Set)):
        raise TypeError(f"samples must be {expected}, got {type(samples).__name__}")
    for index, sample in enumerate(given):
        if not isinstance(sample, Sample):
            _check_row(f"samples[{index}]", sample)
    checked = [
        sample if isinstance(sample, Sample) else Sample(sample, source=f"samples[{index}]")
        for index, sample in enumerate(given)
    ]
    if not checked:
        raise ValueError("samples must hold at least one sequence, got none")
    return checked


def _check_row(name: str, row: object) -> None:
    expected = "a Sample or a row of token ids"
    if isinstance(row, str | bytes):
        raise TypeError(f"{name} must be {expected}, got {type(row).__name__}; tokenize it first")
    if isinstance(row, int | np.integer):
        raise TypeError(f"{name} must be {expected}, got {row}; put a single row into a list")
    if not hasattr(row, "__array__"):
        check_type(name, row, Sequence, expected)


def group_samples(samples: Sequence[Sample]) -> list[Ints]:
    """Sort samples by group.

    Args:
        samples: the samples.

    Returns:
        Indices of each group's samples, ascending, int64; groups in order of first appearance.
    """
    members: dict[Hashable, list[int]] = {}
    for index, sample in enumerate(samples):
        members.setdefault(sample.group, []).append(index)
    return [np.array(indices, np.int64) for indices in members.values()]


def build_group_tree(samples: Sequence[Sample], members: Ints) -> PrefixTree:
    """Build the tree of one group.

    Args:
        samples: all samples.
        members: indices of the group's samples, int64.

    Returns:
        The tree; its sequences are the members, in order.

    Raises:
        ValueError: some of the group's samples have keys and others have none.
    """  # noqa: DOC502 (shared_keys raises)
    places: list[int] = members.tolist()
    keys = shared_keys(samples, places)
    return build_prefix_tree([samples[index].tokens for index in places], keys=keys)


def assemble(
    samples: Sequence[Sample],
    parts: Sequence[tuple[Ints, PrefixTree]],
    *,
    duplicated_tokens: int = 0,
    exceeds_budget: bool = False,
) -> Batch:
    """Put trees into one row and their sequences into the caller's order.

    Args:
        samples: all of the caller's samples.
        parts: for each tree, which samples its sequences are, and the tree; in row order.
        duplicated_tokens: see `Batch`.
        exceeds_budget: see `Batch`.

    Returns:
        The batch, on the CPU.
    """
    trees = [tree for _, tree in parts]
    if any(tree.keys is not None for tree in trees):
        # Keys decide about merging inside a group, so a group without any may have zeros.
        trees = [
            dataclasses.replace(tree, keys=np.zeros_like(tree.tokens))
            if tree.keys is None
            else tree
            for tree in trees
        ]
    forest = trees[0] if len(trees) == 1 else concatenate_trees(trees)
    indices = np.concatenate([members for members, _ in parts])
    order = np.argsort(indices)
    indices = indices[order]
    if (order[1:] < order[:-1]).any():
        forest = dataclasses.replace(forest, sequence_nodes=forest.sequence_nodes[order])
    places: list[int] = indices.tolist()
    chosen = tuple(samples[index] for index in places)
    return Batch(
        packed=pack_tree(forest),
        targets=find_targets(forest, flat_weights(chosen)),
        samples=chosen,
        indices=indices,
        duplicated_tokens=duplicated_tokens,
        exceeds_budget=exceeds_budget,
    )


def flat_weights(samples: Sequence[Sample]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Weights of all samples one after the other.

    Args:
        samples: the samples.

    Returns:
        One weight per flat token, [sum of L] float64.
    """
    return np.concatenate([sample.weights for sample in samples])
