"""What a conversation's history would add if it kept the tokens that were sampled as they are.

A template that rewrites an assistant message in history (thinking stripped, white space trimmed)
still writes the messages behind it; `drift_watch` puts these behind the sampled tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from treetrain.data.chat import ASSISTANT, Chat, Message, Tools, unused_mark


def text_after_turn(
    chat: Chat, messages: Sequence[Message], tools: Tools | None, *, place: int, context: str
) -> str | None:
    """Finds what a context holds behind the end-of-turn token of one of its assistant messages.

    The message is rendered with a mark as its content: what stands behind the mark begins with the
    end of the turn, and must be the end of the context.

    Args:
        chat: the template.
        messages: the messages of the context.
        tools: schemas of its tools, or None.
        place: index of the assistant message.
        context: the rendered messages with the generation prompt.

    Returns:
        The text, or None where the template writes the end of the turn, or what follows it,
        otherwise than with the mark.
    """
    before, after = messages[:place], messages[place + 1 :]
    mark = unused_mark(messages)
    for marked in _marked_messages(messages[place], mark):
        try:
            whole = chat.render([*before, marked, *after], tools, prompt=True)
            alone = chat.render([*before, marked], tools, prompt=False)
        except ValueError:
            # Some templates refuse a tool's answer that no call asked for: then the calls stay.
            continue
        if whole.count(mark) != 1 or alone.count(mark) != 1:
            continue
        rest = whole.partition(mark)[2]
        closing = alone.partition(mark)[2].rstrip()
        if context.endswith(rest) and rest.startswith(closing):
            return rest[len(closing) :]
    return None


def _marked_messages(message: Message, mark: str) -> Iterator[Message]:
    yield {"role": ASSISTANT, "content": mark}
    if message.get("tool_calls"):
        yield {"role": ASSISTANT, "content": mark, "tool_calls": message["tool_calls"]}
