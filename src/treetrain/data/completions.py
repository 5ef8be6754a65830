"""Sequences of a prompt with one completion: two texts, or a text and the ids sampled after it.

A completion is encoded apart from its prompt, which was encoded before the first token was drawn.
"""

from __future__ import annotations

import numpy as np

from treetrain.data.chat import Chat, Tokenizer
from treetrain.data.encode import encode_texts, opening_tokens
from treetrain.data.formats import RecordedRow, TextRow
from treetrain.data.sample import Ints, Sample


def sample_of_texts(
    row: TextRow, tokenizer: Tokenizer, source: str, *, end_completions: bool
) -> Sample:
    """Makes the sequence of a prompt and a completion, both texts.

    Args:
        row: the checked row.
        tokenizer: tokenizer of transformers.
        source: file and line.
        end_completions: whether the completion ends with the end-of-text token.

    Returns:
        The sequence, of which the completion is trained.

    Raises:
        ValueError: the tokenizer has no end-of-text token, or changes a text's ids where it adds
            special tokens.
    """  # noqa: DOC502 (the functions below raise)
    prompt, completion = encode_texts(tokenizer, [row.prompt, row.completion])
    end = _end_token(tokenizer, source) if end_completions else np.empty(0, np.int64)
    prompt = np.concatenate([opening_tokens(tokenizer), prompt])
    return _split_sample(row, prompt, np.concatenate([completion, end]), source)


def sample_of_answer(row: RecordedRow, chat: Chat, source: str) -> Sample:
    """Makes the sequence of a user's question and the ids that a model answered with.

    Args:
        row: the checked row.
        chat: tokenizer and template, for the question.
        source: file and line.

    Returns:
        The sequence, of which the answer is trained.

    Raises:
        ValueError: the template does not render the question.
    """
    question = [{"role": "user", "content": row.prompt}]
    try:
        context = chat.render(question, None, prompt=True)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error
    [prompt] = encode_texts(chat.tokenizer, [context])
    return _split_sample(row, prompt, np.array(row.ids, np.int64), source)


def _split_sample(row: TextRow | RecordedRow, prompt: Ints, sampled: Ints, source: str) -> Sample:
    return Sample(
        np.concatenate([prompt, sampled]),
        np.repeat([0.0, 1.0], [len(prompt), len(sampled)]),
        group=row.group,
        trajectory=row.trajectory_id,
        advantage=row.advantage,
        reward=row.reward,
        source=source,
    )


def _end_token(tokenizer: Tokenizer, source: str) -> Ints:
    end = getattr(tokenizer, "eos_token_id", None)
    if end is None:
        raise ValueError(
            f"{source}: the tokenizer has no end-of-text token to end a completion with; give it "
            "one (eos_token), or end_completions=False"
        )
    return np.array([end], dtype=np.int64)
