"""Text to token ids, and turns of a text to weights of its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from treetrain.data.chat import Tokenizer
from treetrain.data.sample import Floats, Ints
from treetrain.data.turns import PER_STEP_WAY_OUT, Turn


def encode_texts(tokenizer: Tokenizer, texts: list[str]) -> list[Ints]:
    """Encodes texts as they stand; special tokens spelled out in them become their ids.

    Args:
        tokenizer: tokenizer of transformers.
        texts: texts in which nothing is to be added.

    Returns:
        Token ids of each text, [L] int64.
    """
    if not texts:
        return []
    encoded = tokenizer(texts, add_special_tokens=False, verbose=False)
    return [np.array(ids, dtype=np.int64) for ids in encoded["input_ids"]]


def encode_turns(
    tokenizer: Tokenizer, text: str, turns: Sequence[Turn]
) -> tuple[Ints, Floats, int]:
    """Encodes a whole conversation once and marks the tokens of its turns.

    A token belongs to a turn when it lies wholly inside. One that reaches across the edge of a turn
    was never sampled; it has weight 0 when all it takes of the turn is white space, and is refused
    otherwise.

    Args:
        tokenizer: fast tokenizer of transformers.
        text: the rendered conversation.
        turns: what was sampled in it.

    Returns:
        Token ids, [L] int64; 1 for the tokens of turns and 0 elsewhere, [L] float64; the number of
        tokens that reach across an edge.

    Raises:
        ValueError: the tokenizer gives no offsets, or a token across an edge takes more than white
            space of the turn.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError(
            f"expand='whole' needs a fast tokenizer, which knows where its tokens stand in the "
            f"text, got {type(tokenizer).__name__}; {PER_STEP_WAY_OUT}"
        )
    encoded: Any = tokenizer(
        [text], add_special_tokens=False, return_offsets_mapping=True, verbose=False
    )
    tokens = np.array(encoded["input_ids"][0], dtype=np.int64)
    offsets = np.array(encoded["offset_mapping"][0], dtype=np.int64).reshape(-1, 2)
    starts, ends = offsets[:, 0], offsets[:, 1]
    weights = np.zeros(len(tokens))
    across = 0
    for turn in turns:
        weights[(starts >= turn.start) & (ends <= turn.end)] = 1.0
        for edge in (turn.start, turn.end):
            for token in np.flatnonzero((starts < edge) & (ends > edge)):
                left, right = int(starts[token]), int(ends[token])
                taken = text[max(left, turn.start) : min(right, turn.end)]
                if taken.strip():
                    raise ValueError(
                        f"messages[{turn.message}] must begin and end between two tokens, got the "
                        f"token {text[left:right]!r} that takes {taken!r} of it; {PER_STEP_WAY_OUT}"
                    )
                across += 1
    return tokens, weights, across


def opening_tokens(tokenizer: Tokenizer) -> Ints:
    """Finds the tokens that the tokenizer puts before a text, such as a beginning-of-text token.

    Args:
        tokenizer: tokenizer of transformers.

    Returns:
        Token ids, [n] int64; often empty.

    Raises:
        ValueError: the ids of a text change when special tokens are added around it.
    """
    bare = list(tokenizer(["x"], add_special_tokens=False)["input_ids"][0])
    dressed = list(tokenizer(["x"], add_special_tokens=True)["input_ids"][0])
    for index in range(len(dressed) - len(bare) + 1):
        if dressed[index : index + len(bare)] == bare:
            return np.array(dressed[:index], dtype=np.int64)
    raise ValueError(
        f"a tokenizer must keep a text's ids when it adds special tokens, got {bare} and "
        f"{dressed}; give rows of input_ids"
    )
