"""Leak checks by change: alter one token and see which hidden states of the tree move.

A token must not move what stands before it on its paths, nor anything on other paths; it must move
what follows it. Which sequences a change concerns is worked out from the lists of tokens alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from treetrain.data.sample import Ints, Sample

Hidden = Callable[[Sequence[Sample]], list[Tensor]]

#: What is checked, and what a failure means.
RULES = {
    "sibling": "a token moved hidden states of a path that it is not on",
    "other_tree": "a token moved hidden states of another tree in the same row",
    "future_child": "a token moved hidden states before it on its own path",
    "own_target": "a target moved the hidden state that predicts it",
    "ancestor": "a token moved nothing of what follows it",
    "order": "another order of the sequences gave other log-probabilities",
}


@dataclass(frozen=True)
class LeakCheck:
    """The outcome of one kind of change.

    Attributes:
        rule: a key of `RULES`.
        moved: largest absolute change of a hidden state that must not move; for "ancestor", the
            smallest change that followed an altered token; for "order", nats.
        allowed: most that may move; for "ancestor", what must be exceeded.
        places: number of tokens looked at; 0: the samples have no such place.
        where: the token that was altered and the one that moved, or did not; "" without any.
    """

    rule: str
    moved: float
    allowed: float
    places: int
    where: str = ""

    @property
    def passes(self) -> bool:
        """Whether nothing leaked."""
        if not self.places:
            return True
        return self.moved > self.allowed if self.rule == "ancestor" else self.moved <= self.allowed

    def __str__(self) -> str:
        sign = "at most" if self.rule == "ancestor" else "more than"
        return f"{RULES[self.rule]}: {self.where}, by {self.moved:.2g}, {sign} {self.allowed:.2g}"


@dataclass(frozen=True)
class Change:
    """One token to be altered, in every sequence that shares it.

    Attributes:
        sequence: index of a sequence through it.
        place: its place there.
        token: the id it becomes.
        shared: which sequences share it, bool [S].
    """

    sequence: int
    place: int
    token: int
    shared: NDArray[np.bool_]


def find_changes(samples: Sequence[Sample], *, count: int, vocabulary: int) -> list[Change]:
    """Choose tokens to alter, where paths part, end or go together.

    Args:
        samples: the sequences.
        count: most tokens to alter.
        vocabulary: ids below it are valid.

    Returns:
        The changes, spread over depths. An altered token merges with no sibling, so that the tree's
        shape stays; where every id is taken by siblings, the token is passed over.
    """
    order = sorted(range(len(samples)), key=lambda index: _sort_key(samples[index]))
    places: set[tuple[int, int, int]] = set()
    for index in order:
        if length := len(samples[index]):
            places |= {(0, index, 0), (length // 2, index, length // 2)}
    deep: set[tuple[int, int, int]] = set()
    for first, second in pairwise(order):
        if samples[first].group != samples[second].group:
            continue
        common = _common_length(samples[first], samples[second])
        for index in (first, second):
            if common < len(samples[index]):
                deep.add((common, index, common))
        if common:
            deep.add((common - 1, first, common - 1))
    changes: list[Change] = []
    for _, index, place in [*_spread(sorted(deep), count - 2), *_spread(sorted(places), 2)]:
        change = _make_change(samples, index, place, vocabulary)
        if change is not None:
            changes.append(change)
    return changes


def alter(samples: Sequence[Sample], change: Change) -> list[Sample]:
    """Alter one token in every sequence that shares it.

    Args:
        samples: the sequences.
        change: the token.

    Returns:
        New samples; those that the change does not concern are the same objects.
    """
    return [
        _with_token(sample, change.place, change.token) if shared else sample
        for sample, shared in zip(samples, change.shared, strict=True)
    ]


def check_changes(
    samples: Sequence[Sample], changes: Sequence[Change], hidden: Hidden, *, tolerance: float
) -> list[LeakCheck]:
    """Alter one token after the other and compare hidden states of all sequences.

    Args:
        samples: the sequences.
        changes: the tokens to alter.
        hidden: computes the hidden states of sequences on a tree, [L, C] each.
        tolerance: part of the largest hidden value that what must not move may move by: rounding.

    Returns:
        One check for each rule but "order".
    """
    before = hidden(samples)
    largest = max((float(value.abs().max()) for value in before if value.numel()), default=0.0)
    allowed = tolerance * largest
    found = {rule: LeakCheck(rule, 0.0, allowed, 0) for rule in RULES if rule != "order"}
    found["ancestor"] = LeakCheck("ancestor", float("inf"), 0.0, 0)

    def note(rule: str, moved: Tensor, change: Change, index: int, first: int) -> None:
        if not len(moved):
            return
        old = found[rule]
        place = int(moved.argmax())
        value = float(moved[place])
        worse = value < old.moved if rule == "ancestor" else not value <= old.moved
        where = (
            f"token {change.place} of samples[{change.sequence}] altered, "
            f"token {first + place} of samples[{index}]"
        )
        found[rule] = LeakCheck(
            rule,
            value if worse else old.moved,
            old.allowed,
            old.places + len(moved),
            where if worse or not old.where else old.where,
        )

    for change in changes:
        after = hidden(alter(samples, change))
        altered = samples[change.sequence]
        for index, (old, new) in enumerate(zip(before, after, strict=True)):
            moved = (new.double() - old.double()).abs().amax(-1) if len(old) else old.new_zeros(0)
            if change.shared[index]:
                note("future_child", moved[: change.place], change, index, 0)
                before_place = max(change.place - 1, 0)
                note("own_target", moved[before_place : change.place], change, index, before_place)
                note("ancestor", moved[change.place + 1 :], change, index, change.place + 1)
            else:
                common = _common_length(altered, samples[index])
                rule = "sibling" if common else "other_tree"
                note(rule, moved, change, index, 0)
    return list(found.values())


def _identity(sample: Sample) -> Ints:
    """Token ids and side keys, [L, 2]: what must be equal for tokens to be shared."""
    keys = np.zeros_like(sample.tokens) if sample.keys is None else sample.keys
    return np.stack([sample.tokens, keys], axis=1)


def _sort_key(sample: Sample) -> tuple[str, bytes]:
    return repr(sample.group), _identity(sample).astype(">i8").tobytes()


def _common_length(left: Sample, right: Sample) -> int:
    if left.group != right.group:
        return 0
    length = min(len(left), len(right))
    differs = (_identity(left)[:length] != _identity(right)[:length]).any(axis=1)
    return int(differs.argmax()) if differs.any() else length


def _spread(candidates: list[tuple[int, int, int]], count: int) -> list[tuple[int, int, int]]:
    """Take some of the candidates, the first and the last among them."""
    if len(candidates) <= count:
        return candidates
    chosen = np.linspace(0, len(candidates) - 1, max(count, 1)).round().astype(int).tolist()
    return [candidates[place] for place in sorted(set(chosen))]


def _make_change(
    samples: Sequence[Sample], sequence: int, place: int, vocabulary: int
) -> Change | None:
    own = samples[sequence]
    commons = np.array([_common_length(own, sample) for sample in samples])
    shared = commons > place
    taken = {
        int(sample.tokens[place])
        for sample, common in zip(samples, commons.tolist(), strict=True)
        if common >= place and len(sample) > place and sample.group == own.group
    }
    # Ids of the data come first: every other id might mean something to the model.
    known = np.unique(np.concatenate([sample.tokens for sample in samples])).tolist()
    for token in [*known[len(known) // 2 :], *known, *range(min(vocabulary, len(taken) + 1))]:
        if token not in taken:
            return Change(sequence, place, token, shared)
    return None


def _with_token(sample: Sample, place: int, token: int) -> Sample:
    tokens = sample.tokens.copy()
    tokens[place] = token
    return Sample(
        tokens,
        sample.weights,
        keys=sample.keys,
        group=sample.group,
        trajectory=sample.trajectory,
        advantage=sample.advantage,
        logprobs=sample.logprobs,
        reward=sample.reward,
        source=sample.source,
    )
