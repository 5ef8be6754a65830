"""Text to token ids, and turns of a text to weights of its tokens."""

from __future__ import annotations

import re
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


def encode_steps(tokenizer: Tokenizer, texts: list[str]) -> list[Ints]:
    """Encodes texts that repeat each other's beginnings, each repeated piece once.

    Special tokens cut a text into pieces that byte-level tokenizers encode independently. Whether
    this one does is not assumed: the longest text is encoded whole as well, and where the ids
    differ all texts are encoded whole.

    Args:
        tokenizer: tokenizer of transformers.
        texts: contexts and what was sampled after them, of one conversation.

    Returns:
        Token ids of each text, [L] int64: those of `encode_texts`.
    """
    cut = _piece_pattern(tokenizer)
    if cut is None or len(texts) < 3:
        return encode_texts(tokenizer, texts)
    pieces = [[piece for piece in cut.split(text) if piece] for text in texts]
    distinct = list(dict.fromkeys(piece for own in pieces for piece in own))
    ids_of = dict(zip(distinct, encode_texts(tokenizer, distinct), strict=True))
    joined = [np.concatenate([_NONE, *(ids_of[piece] for piece in own)]) for own in pieces]
    longest = max(range(len(texts)), key=lambda index: len(texts[index]))
    if np.array_equal(joined[longest], encode_texts(tokenizer, [texts[longest]])[0]):
        return joined
    return encode_texts(tokenizer, texts)


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


_NONE = np.empty(0, np.int64)


def _piece_pattern(tokenizer: Tokenizer) -> re.Pattern[str] | None:
    added: dict[int, Any] = getattr(tokenizer, "added_tokens_decoder", {})
    plain = [
        token.content
        for token in added.values()
        if token.special and not (token.lstrip or token.rstrip or token.single_word)
    ]
    if not plain:
        return None
    longest_first = sorted(plain, key=len, reverse=True)
    return re.compile("(" + "|".join(re.escape(content) for content in longest_first) + ")")
