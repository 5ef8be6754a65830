"""Sequences of messages whose token ids were recorded when they were sampled.

Recorded ids win: the text of such a message is neither rendered nor encoded again. What was not
recorded, a context or a whole step, is rendered as it was when the message was sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from treetrain.data.atif import Recorded
from treetrain.data.chat import Chat
from treetrain.data.conversation import Conversation
from treetrain.data.encode import encode_texts
from treetrain.data.fields import field_error
from treetrain.data.sample import MAX_TOKEN_ID, Ints, Sample
from treetrain.data.turns import split_step


def recorded_samples(
    chat: Chat | None, conversation: Conversation, check_rendered: Callable[[int, str], None]
) -> list[Sample]:
    """Makes one sequence of each trained message.

    Args:
        chat: tokenizer and template; None where all ids were recorded.
        conversation: the messages and what was recorded of them.
        check_rendered: called with the index and the text of each trained message that was not
            recorded and had to be rendered.

    Returns:
        The sequences; log-probabilities are there where they were recorded.

    Raises:
        ValueError: an id is out of range, or a message that was not recorded cannot be rendered as
            it was sampled.
    """  # noqa: DOC502 (the functions below raise)
    found: list[Sample] = []
    for place in conversation.trained:
        recorded = conversation.recorded.get(place)
        context, sampled = _ids_of(chat, conversation, place, recorded, check_rendered)
        logprobs = None if recorded is None else recorded.logprobs
        found.append(conversation.step_sample(place, context, sampled, logprobs=logprobs))
    return found


def join_steps(samples: Sequence[Sample]) -> list[Sample]:
    """Makes one sequence of steps of which each begins with all tokens of the one before.

    Where a context does not begin with what was there, because history was rewritten or encoded
    anew, the next sequence begins; so it does where log-probabilities begin or end.

    Args:
        samples: the steps of one trajectory, in their order.

    Returns:
        The sequences; all that was sampled is trained, each token once.
    """
    joined: list[Sample] = []
    for sample in samples:
        last = joined[-1] if joined else None
        if last is None or not _goes_on(last, sample):
            joined.append(sample)
            continue
        logprobs = None if sample.logprobs is None else sample.logprobs.copy()
        if logprobs is not None:
            logprobs[: len(last)] = last.logprobs
        weights = sample.weights.copy()
        weights[: len(last)] = last.weights
        joined[-1] = replace(sample, weights=weights, logprobs=logprobs, source=last.source)
    return joined


def _goes_on(last: Sample, sample: Sample) -> bool:
    same = np.array_equal(sample.tokens[: len(last)], last.tokens)
    return same and (last.logprobs is None) == (sample.logprobs is None)


def _ids_of(
    chat: Chat | None,
    conversation: Conversation,
    place: int,
    recorded: Recorded | None,
    check_rendered: Callable[[int, str], None],
) -> tuple[Ints, Ints]:
    source = conversation.place(place)
    if recorded is not None and recorded.context is not None:
        context = _checked(recorded.context, "prompt_token_ids", source)
        return context, _checked(recorded.sampled, "completion_token_ids", source)
    # The caller asked for a tokenizer where anything was not recorded.
    assert chat is not None
    messages, tools = conversation.messages, conversation.tools
    if recorded is None:
        texts = split_step(chat, messages, tools, place=place)
        check_rendered(place, texts[1])
        context, sampled = encode_texts(chat.tokenizer, list(texts))
        return context, sampled
    text = chat.render(messages[:place], tools, prompt=True)
    [context] = encode_texts(chat.tokenizer, [text])
    return context, _checked(recorded.sampled, "completion_token_ids", source)


def _checked(ids: list[int], name: str, source: str) -> Ints:
    array = np.array(ids, dtype=np.int64)
    for index in np.flatnonzero((array < 0) | (array > MAX_TOKEN_ID))[:1]:
        raise field_error(
            source, f"{name}[{index}]", f"must be in 0 .. {MAX_TOKEN_ID}, got {array[index]}"
        )
    return array
