"""Finds in a rendered conversation what the model sampled.

No `{% generation %}` in the template is needed: a turn is found from ordinary renders. `encode`
makes token ids and weights of text and turns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from treetrain.data.chat import ASSISTANT, Chat, Message, Tools, unused_mark

PER_STEP_WAY_OUT = "read with expand='per_step', or give another chat_template"


@dataclass(frozen=True)
class Turn:
    """The part of a rendered conversation that the model sampled in one assistant message.

    It begins after the generation prompt and ends with the end-of-turn token; white space that the
    template puts after that token is outside.

    Attributes:
        message: index of the message in its conversation.
        start: index of the turn's first character in the rendered text.
        end: index one past the turn's last character.
    """

    message: int
    start: int
    end: int


def find_turns(
    chat: Chat, messages: Sequence[Message], tools: Tools | None
) -> tuple[str, list[Turn]]:
    """Renders a whole conversation and finds every assistant turn in the text.

    A turn is what `messages[:i + 1]` adds to `messages[:i]` with its generation prompt, wherever
    that is a beginning of the whole text. Where the template rewrites history (thinking stripped),
    message i is rendered once more with a mark as its only content: what stands before and after
    the mark must be the text before and after the turn.

    Args:
        chat: the template.
        messages: the conversation.
        tools: schemas of its tools, or None.

    Returns:
        The text, and the turns in the order of the messages.

    Raises:
        ValueError: a turn cannot be found with certainty; the message is named.
    """
    text = chat.render(messages, tools, prompt=False)
    turns: list[Turn] = []
    for place, message in enumerate(messages):
        if message["role"] != ASSISTANT:
            continue
        earliest = turns[-1].end if turns else 0
        turn = _prefix_turn(chat, messages, tools, place=place, text=text)
        turn = turn or _marked_turn(
            chat, messages, tools, place=place, text=text, earliest=earliest
        )
        if turn is None or turn.start < earliest:
            raise ValueError(
                f"messages[{place}] cannot be found in the rendered conversation: the chat "
                f"template writes it differently with other messages around it; {PER_STEP_WAY_OUT}"
            )
        turns.append(turn)
    return text, turns


def split_step(
    chat: Chat, messages: Sequence[Message], tools: Tools | None, *, place: int
) -> tuple[str, str]:
    """Renders one assistant message as it stood when it was sampled.

    Args:
        chat: the template.
        messages: the conversation; those after `place` are not used.
        tools: schemas of its tools, or None.
        place: index of the assistant message.

    Returns:
        The context, which ends with the generation prompt, and the text sampled then, which ends
        with the end-of-turn token.

    Raises:
        ValueError: what the template writes for the message does not begin with the context.
    """
    context = chat.render(messages[:place], tools, prompt=True)
    until = _without_space(chat, chat.render(messages[: place + 1], tools, prompt=False))
    if not until.startswith(context):
        same = _common_length(context, until)
        raise ValueError(
            f"messages[{place}] is not what the chat template's generation prompt asks for: the "
            f"context ends {context[same:][:80]!r} where the rendered message has "
            f"{until[same:][:80]!r}; set the template's variables as they were when sampling (for "
            f"example enable_thinking), or give another chat_template"
        )
    return context, until[len(context) :]


def calls_missing(message: Message, turn: str) -> bool:
    """Says whether the template left a tool call out.

    Args:
        message: an assistant message.
        turn: what the template wrote for it.

    Returns:
        True when the name of a called function is not in the text beside the message's own words.
    """
    for own in (message.get("reasoning_content"), message.get("content")):
        turn = turn.replace((own or "").strip(), "", 1)
    return any(_function(call)["name"] not in turn for call in message.get("tool_calls") or ())


def tools_missing(tools: Tools | None, text: str) -> bool:
    """Says whether the template left a tool's schema out.

    Args:
        tools: the schemas, or None.
        text: the rendered conversation.

    Returns:
        True when the name of a tool is not in the text.
    """
    return any(str(_function(tool).get("name", "")) not in text for tool in tools or ())


def _function(value: Mapping[str, Any]) -> Mapping[str, Any]:
    return value.get("function", value)


def _without_space(chat: Chat, text: str) -> str:
    space = len(chat.closing) - len(chat.closing.rstrip())
    return text[: len(text) - space] if space and text.endswith(chat.closing[-space:]) else text


def _prefix_turn(
    chat: Chat, messages: Sequence[Message], tools: Tools | None, *, place: int, text: str
) -> Turn | None:
    if place == 0:
        return None
    context = chat.render(messages[:place], tools, prompt=True)
    until = _without_space(chat, chat.render(messages[: place + 1], tools, prompt=False))
    if not until.startswith(context) or not text.startswith(until):
        return None
    return Turn(place, len(context), len(until))


def _marked_turn(
    chat: Chat,
    messages: Sequence[Message],
    tools: Tools | None,
    *,
    place: int,
    text: str,
    earliest: int,
) -> Turn | None:
    mark = unused_mark(messages)
    marked: dict[str, Any] = {"role": ASSISTANT, "content": mark}
    before, after = list(messages[:place]), list(messages[place + 1 :])
    try:
        whole = chat.render([*before, marked, *after], tools, prompt=False)
    except ValueError:
        # Some templates refuse a tool's answer that no call asked for.
        if not messages[place].get("tool_calls"):
            raise
        marked["tool_calls"] = messages[place]["tool_calls"]
        whole = chat.render([*before, marked, *after], tools, prompt=False)
    alone = chat.render([*before, marked], tools, prompt=False)
    if whole.count(mark) != 1 or alone.count(mark) != 1:
        return None
    head, _, rest = whole.partition(mark)
    closing = alone.partition(mark)[2].rstrip()
    start = _turn_start(chat.generation_prompt, head, earliest)
    end = len(text) - len(rest)
    fits = text.startswith(head[:start]) and text.endswith(rest) and end >= start
    if start < 0 or not fits or not rest.startswith(closing):
        return None
    return Turn(place, start, end + len(closing))


def _turn_start(generation_prompt: str, head: str, earliest: int) -> int:
    found = head.rfind(generation_prompt, earliest)
    if found >= 0:
        return found + len(generation_prompt)
    # A generation prompt that opens the thinking is cut short in history: "assistant\n<think>\n".
    for length in range(len(generation_prompt) - 1, 0, -1):
        if head.endswith(generation_prompt[:length]):
            return len(head)
    return -1


def _common_length(left: str, right: str) -> int:
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return min(len(left), len(right))
