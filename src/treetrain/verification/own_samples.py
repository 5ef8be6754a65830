"""Sequences made for one model: ids of its vocabulary, and paths beyond its windows and chunks.

They stand in for data where there is none yet, and reach where data may not: what they are good for
is `verify`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from torch import nn
from transformers import PreTrainedModel

from treetrain.data.sample import Ints, Sample
from treetrain.errors import UnsupportedModelError, check_number, check_type
from treetrain.models.positions import check_depth
from treetrain.models.prepared import PreparedModel
from treetrain.models.special_ids import find_plain_ids
from treetrain.models.wrappers import unwrap_model
from treetrain.tree.build import build_prefix_tree
from treetrain.verification.reach import count_experts, find_sizes
from treetrain.verification.restore import temporarily_prepared, unchanged

#: Tokens by which the longest path goes beyond a window or chunk.
BEYOND = 9
#: Choices of experts for each expert of a layer: at random, one in 50 is then left out.
CHOICES_PER_EXPERT = 4
#: Length of the sequences that are added for the experts, tokens.
MORE = 24
#: Ids that the sequences need at least, to part from each other.
FEWEST_IDS = 8

Tokens = list[int]


def make_samples_for(model: nn.Module, *, limit_tokens: int | None = None) -> list[Sample]:
    """Make sequences that put to use what a model computes differently on longer or more paths.

    The first tree holds a path that others part from four levels deep, two roots, equal sequences,
    strict prefixes, and branches of one token. For each window and chunk of the model's layers
    there is a tree with a path beyond it, from which others part long before its edge, one token
    before it, at it and after it. Where a layer has experts, there are enough tokens for nearly all
    of them to be chosen. Weights differ between sequences, and some tokens are not trained.

    Args:
        model: a Hugging Face causal model, prepared or not.
        limit_tokens: most flat tokens; a tree beyond a window takes at least twice the window, and
            seven times without a limit. None: no limit.

    Returns:
        The sequences, a group for each tree; the same ones each time. What is beyond the limit, or
        deeper than the model's positions, is left out: `verify` reports what is not tested.

    Raises:
        ValueError: the model has too few token ids, or the limit is below the shortest sequence.

    Example:
        >>> from treetrain.testing.models import make_tiny_model
        >>> samples = make_samples_for(make_tiny_model("mistral"))  # its window is 4
        >>> len(samples), max(map(len, samples))
        (18, 31)
    """  # noqa: DOC502 (finding ids and taking sequences raise)
    model = unwrap_model(model)
    check_type("model", model, PreTrainedModel, "a transformers model")
    if limit_tokens is not None:
        check_number("limit_tokens", limit_tokens, whole=True)
    assert isinstance(model, PreTrainedModel)
    draw = _Drawing(find_enough_ids(model))
    short = [("short paths", tokens) for tokens in _short_paths(draw)]
    with unchanged(model), temporarily_prepared(model) as prepared:
        long = [
            [(f"beyond {size}", tokens) for tokens in _long_paths(draw, size)]
            for size in find_sizes(prepared)
            if _is_possible(prepared, size + BEYOND)
        ]
        more = [("more tokens", draw.tokens(MORE)) for _ in range(_count_more(prepared, short))]
    # Within a limit each window is reached before any gets all of its branches.
    reaching = [own for tree in long for own in tree[:2]]
    branching = [own for tree in long for own in tree[2:]]
    kept = _take([*short, *reaching, *more, *branching], limit_tokens)
    return [
        Sample(tokens, _weights(len(tokens), place), group=group)
        for place, (group, tokens) in enumerate(kept)
    ]


def find_enough_ids(model: PreTrainedModel) -> Ints:
    """Find the token ids without a role, and make sure that they are enough to part paths by.

    Args:
        model: the model.

    Returns:
        The ids, ascending, int64.

    Raises:
        ValueError: there are fewer than `FEWEST_IDS`.
    """
    plain = np.array(find_plain_ids(model), dtype=np.int64)
    if len(plain) < FEWEST_IDS:
        vocabulary = model.config.get_text_config().vocab_size
        raise ValueError(
            f"model must have at least {FEWEST_IDS} token ids without a role, got {len(plain)} of "
            f"a vocabulary of {vocabulary}; check it on sequences of your own"
        )
    return plain


class _Drawing:
    """Draws tokens, the same ones each time.

    Args:
        ids: the ids to draw from.
    """

    def __init__(self, ids: Ints) -> None:
        self._ids = ids
        self._rng = np.random.default_rng(0)

    def tokens(self, count: int) -> Tokens:
        return self._rng.choice(self._ids, count).tolist()

    def part(self, path: Tokens, place: int, count: int) -> Tokens:
        """A sequence that leaves a path before `place` and goes on for `count` tokens."""
        others = self._ids[self._ids != path[place]]
        return [*path[:place], int(self._rng.choice(others)), *self.tokens(count - 1)]


def _short_paths(draw: _Drawing) -> list[Tokens]:
    first = draw.tokens(30)
    second = draw.part(first, 18, 9)
    third = draw.part(second, 23, 7)
    other_root = draw.part(first, 0, 10)
    return [
        first,
        draw.part(first, 12, 8),
        second,
        third,
        draw.part(third, 27, 4),
        third[:26],
        draw.part(third, 29, 1),
        first,
        first[:12],
        other_root,
        draw.part(other_root, 4, 5),
    ]


def _long_paths(draw: _Drawing, size: int) -> list[Tokens]:
    """Paths around a window's edge; the first two reach beyond it."""
    path = draw.tokens(size + BEYOND)
    before = draw.part(path, max(size - 1, 1), BEYOND)
    return [
        path,
        before,
        draw.part(path, size, BEYOND - 1),
        draw.part(path, size + 1, BEYOND - 2),
        draw.part(before, size + 2, BEYOND - 3),
        path[:size],
        draw.part(path, max(size // 2, 1), size - size // 2 + BEYOND - 4),
    ]


def _count_more(prepared: PreparedModel, short: Sequence[tuple[str, Tokens]]) -> int:
    """How many more sequences it takes for the experts."""
    sequences = [np.array(tokens, dtype=np.int64) for _, tokens in short]
    experts = count_experts(prepared, sequences)
    if experts is None or experts.total is None:
        return 0
    wanted = CHOICES_PER_EXPERT * experts.total / experts.size
    return max(0, math.ceil((wanted - build_prefix_tree(sequences).num_tokens) / MORE))


def _is_possible(prepared: PreparedModel, depth: int) -> bool:
    """Whether the model's positions reach that deep, as trained and as trees can be computed."""
    config = prepared.model.config.get_text_config()
    most = getattr(config, "max_position_embeddings", None)
    if prepared.positions.count is not None:
        most = prepared.positions.count - prepared.positions.offset
    if most is not None and depth > most:
        return False
    try:
        check_depth(prepared.model, depth)
    except UnsupportedModelError:
        return False
    return True


def _take(candidates: Sequence[tuple[str, Tokens]], limit: int | None) -> list[tuple[str, Tokens]]:
    """Those that fit into a limit of flat tokens, one after the other."""
    if limit is None:
        return list(candidates)
    kept: list[tuple[str, Tokens]] = []
    for group, tokens in candidates:
        if len(tokens) <= limit:
            kept.append((group, tokens))
            limit -= len(tokens)
    if not kept:
        shortest = min(len(tokens) for _, tokens in candidates)
        raise ValueError(
            f"limit_tokens must be at least the length of the shortest sequence, {shortest}, got "
            f"{limit}"
        )
    return kept


def _weights(length: int, place: int) -> np.ndarray:
    weights = np.ones(length)
    if place % 3 == 1:
        weights[: length // 2] = 0
    elif place % 3 == 2:
        weights *= 0.5
    return weights
