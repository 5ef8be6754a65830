"""Sequences of conversations whose text is rendered and encoded: whole, or one per message.

What the chat template leaves out of the text is refused or counted here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from treetrain.data.chat import Chat
from treetrain.data.conversation import Conversation
from treetrain.data.encode import encode_steps, encode_turns
from treetrain.data.report import ReadReport
from treetrain.data.sample import Sample
from treetrain.data.turns import calls_missing, find_turns, split_step, tools_missing

Unrendered = Literal["refuse", "count"]


@dataclass(frozen=True)
class Omissions:
    """What becomes of tools and tool calls that the chat template does not write.

    Attributes:
        unrendered: whether they are refused or counted.
        report: counts, added to.
    """

    unrendered: Unrendered
    report: ReadReport

    def check_calls(self, conversation: Conversation, place: int, turn: str) -> None:
        """Looks for the tool calls of an assistant message in its text.

        Args:
            conversation: the messages.
            place: index of the message.
            turn: what the template wrote for it.

        Raises:
            ValueError: a call is missing and missing ones are refused.
        """
        if not calls_missing(conversation.messages[place], turn):
            return
        if self.unrendered == "refuse":
            raise ValueError(
                f"messages[{place}].tool_calls are not written by the chat template, so that the "
                f"model would be trained not to make them; give a chat_template that writes tool "
                f"calls, or unrendered='count' to go on without them"
            )
        self.report.calls_missing += 1

    def check_tools(self, conversation: Conversation, text: str) -> None:
        """Looks for the tools of a conversation in its text.

        Args:
            conversation: the messages, with their tools.
            text: what the template wrote.

        Raises:
            ValueError: a tool is missing and missing ones are refused.
        """
        if not tools_missing(conversation.tools, text):
            return
        if self.unrendered == "refuse":
            raise ValueError(
                "the tools are not written by the chat template, so that the model would not see "
                "them; give a chat_template that writes tools, tools=[] to leave them out, or "
                "unrendered='count' to go on without them"
            )
        self.report.tools_missing += 1


def whole_sample(chat: Chat, conversation: Conversation, omissions: Omissions) -> Sample:
    """Makes one sequence of a conversation, rendered and encoded once.

    Args:
        chat: tokenizer and template.
        conversation: the messages.
        omissions: what becomes of what the template leaves out; its report counts tokens across
            the edge of a turn too.

    Returns:
        The sequence, of which the trained messages are trained.

    Raises:
        ValueError: a turn is not found in the text, ends within a token, or lacks its calls.
    """  # noqa: DOC502 (the functions below raise)
    text, turns = find_turns(chat, conversation.messages, conversation.tools)
    turns = [turn for turn in turns if turn.message in conversation.trained]
    for turn in turns:
        omissions.check_calls(conversation, turn.message, text[turn.start : turn.end])
    omissions.check_tools(conversation, text)
    tokens, weights, across = encode_turns(chat.tokenizer, text, turns)
    omissions.report.tokens_across += across
    return conversation.whole_sample(tokens, weights)


def step_samples(
    chat: Chat, conversation: Conversation, omissions: Omissions
) -> tuple[list[Sample], list[tuple[str, int]]]:
    """Makes one sequence of each trained message, rendered as it was when it was sampled.

    Args:
        chat: tokenizer and template.
        conversation: the messages.
        omissions: what becomes of what the template leaves out.

    Returns:
        The sequences, and text and number of tokens of the context of each.

    Raises:
        ValueError: a message is not what the generation prompt asks for, or lacks its calls.
    """  # noqa: DOC502 (the functions below raise)
    texts: list[str] = []
    for place in conversation.trained:
        context, sampled = split_step(chat, conversation.messages, conversation.tools, place=place)
        omissions.check_calls(conversation, place, sampled)
        texts += [context, sampled]
    if texts:
        omissions.check_tools(conversation, texts[-2])
    ids = encode_steps(chat.tokenizer, texts)
    samples = [
        conversation.step_sample(place, context, sampled)
        for place, context, sampled in zip(conversation.trained, ids[::2], ids[1::2], strict=True)
    ]
    lengths = [len(context) for context in ids[::2]]
    return samples, list(zip(texts[::2], lengths, strict=True))
