"""A drift: where ids of text that was tokenised or rendered again leave the ids that were recorded.

A tree shares nothing behind the first id that differs, however alike the texts are. This file holds
the type and compares two lists of ids; `drift_watch` finds what to compare while rows are read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from treetrain.data.sample import Ints

Decode = Callable[[list[int]], str]
Kind = Literal["re-tokenised", "re-rendered", "other ids"]

#: Tokens shown before the place, and from it on.
SHOWN = 6
#: What decoding gives for bytes that are no whole character.
NO_CHARACTER = "\ufffd"


@dataclass(frozen=True)
class Drift:
    """One place at which ids leave the recorded ones.

    Attributes:
        kind: `re-tokenised`: the text is the same and its ids are not; `re-rendered`: the text is
            another; `other ids`: there was no tokenizer to tell the two apart.
        source: file and line; of a conversation also the message in which the place lies.
        later: source of the step that leaves the recorded ids; None where a recorded answer was
            compared with its own text.
        place: index of the first recorded token that differs: in the answer, or on the path of the
            recorded step.
        length: recorded tokens, of the answer or of the whole step.
        before: the last tokens that both have, int64.
        recorded: the first recorded tokens from the place on, int64.
        again: the first tokens that stand there instead, int64.
    """

    kind: Kind
    source: str
    later: str | None
    place: int
    length: int
    before: Ints
    recorded: Ints
    again: Ints

    @property
    def lost(self) -> int:
        """Recorded tokens from the place on, none of which a tree can share."""
        return self.length - self.place


def find_drift(
    recorded: Ints, again: Ints, decode: Decode | None, *, source: str, later: str | None = None
) -> Drift | None:
    """Compares recorded ids with those that were to begin with them.

    Args:
        recorded: the recorded ids, [L] int64.
        again: ids of the same text, or of a text that goes on behind it, [M] int64.
        decode: ids to text, nothing of it cleaned up, or None.
        source: where the recorded ids stand.
        later: where the others stand, or None.

    Returns:
        The drift, or None where `again` begins with all that was recorded.

    Example:
        >>> texts = {5: "a", 6: "b", 7: "ab"}
        >>> decode = lambda ids: "".join(texts[token] for token in ids)
        >>> drift = find_drift(np.array([5, 5, 6]), np.array([5, 7]), decode, source="rows.jsonl:1")
        >>> drift.kind, drift.place, drift.lost
        ('re-tokenised', 1, 2)
    """
    place = common_length(recorded, again)
    if place == len(recorded):
        return None
    start = max(0, place - SHOWN)
    return Drift(
        kind=_kind(recorded[start:], again[start:], decode),
        source=source,
        later=later,
        place=place,
        length=len(recorded),
        before=recorded[start:place],
        recorded=recorded[place : place + SHOWN],
        again=again[place : place + SHOWN],
    )


def _kind(recorded: Ints, again: Ints, decode: Decode | None) -> Kind:
    if decode is None:
        return "other ids"
    text = decode(recorded.tolist()).rstrip(NO_CHARACTER)
    return "re-tokenised" if decode(again.tolist()).startswith(text) else "re-rendered"


def common_length(one: Ints, other: Ints) -> int:
    """Counts the tokens that two lists of ids begin with alike.

    Args:
        one: ids, [L] int64.
        other: ids, [M] int64.

    Returns:
        Their number.
    """
    limit = min(len(one), len(other))
    differs = np.flatnonzero(one[:limit] != other[:limit])
    return int(differs[0]) if len(differs) else limit
