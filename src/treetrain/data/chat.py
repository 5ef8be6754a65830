"""A tokenizer's chat template: conversations as text, and what can be learned of the template.

What the model sampled in a text is found by `turns`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

Message = Mapping[str, Any]
Tools = Sequence[Mapping[str, Any]]

ASSISTANT = "assistant"


class Tokenizer(Protocol):
    """What is used of a tokenizer of transformers."""

    def __call__(self, text: list[str], **arguments: Any) -> Any:
        """Encode texts: a mapping with `input_ids` and, when asked for, `offset_mapping`."""
        ...

    def apply_chat_template(self, conversation: list[Any], **arguments: Any) -> Any:
        """Render a conversation to text."""
        ...


@dataclass(frozen=True)
class Chat:
    """A tokenizer's chat template with everything fixed but the conversation.

    Args:
        tokenizer: tokenizer of transformers with a chat template.
        template: text of another Jinja template to be used instead of the tokenizer's own, or None.
        variables: further variables of the template, such as `enable_thinking`.
    """

    tokenizer: Tokenizer
    template: str | None = None
    variables: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def render(self, messages: Sequence[Message], tools: Tools | None, *, prompt: bool) -> str:
        """Renders messages as text.

        Args:
            messages: the conversation, or its beginning.
            tools: schemas of the tools the model could call, or None.
            prompt: whether the text ends with the generation prompt.

        Returns:
            The text, special tokens spelled out.

        Raises:
            ValueError: the template failed on these messages.
        """
        arguments: dict[str, Any] = dict(self.variables)
        if self.template is not None:
            arguments["chat_template"] = self.template
        if tools:
            arguments["tools"] = [dict(tool) for tool in tools]
        try:
            text = self.tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tokenize=False,
                add_generation_prompt=prompt,
                **arguments,
            )
        # A template is a program: it may fail in any way, and its message needs the file and line.
        except Exception as error:
            raise ValueError(
                f"the chat template failed on {len(messages)} messages ending with role "
                f"{messages[-1]['role'] if messages else None!r}: {type(error).__name__}: {error}; "
                f"give another chat_template"
            ) from error
        if not isinstance(text, str):
            raise ValueError(f"apply_chat_template must return text, got {type(text).__name__}")
        return text

    @cached_property
    def generation_prompt(self) -> str:
        """What the template writes before the model begins to sample."""
        question = [{"role": "user", "content": "x"}]
        without = self.render(question, None, prompt=False)
        with_prompt = self.render(question, None, prompt=True)
        if not with_prompt.startswith(without) or with_prompt == without:
            raise ValueError(
                "the chat template must write a generation prompt after the messages, got "
                f"{with_prompt[-60:]!r} with and {without[-60:]!r} without add_generation_prompt; "
                "give another chat_template"
            )
        return with_prompt[len(without) :]

    @cached_property
    def closing(self) -> str:
        """What the template writes after an assistant message's text, white space included."""
        mark = unused_mark(())
        answered = [{"role": "user", "content": "x"}, {"role": ASSISTANT, "content": mark}]
        return self.render(answered, None, prompt=False).rpartition(mark)[2]

    @cached_property
    def takes_argument_text(self) -> bool:
        """Whether a tool call's arguments given as JSON text appear in the render unchanged."""
        arguments = '{"treetrain":1}'
        call = {"name": "f", "arguments": arguments}
        calling = {
            "role": ASSISTANT,
            "content": "",
            "tool_calls": [{"id": "call00000", "type": "function", "function": call}],
        }
        try:
            text = self.render([{"role": "user", "content": "x"}, calling], None, prompt=False)
        except ValueError:
            return False
        return arguments in text


def unused_mark(messages: Sequence[Message]) -> str:
    """Makes a word that stands nowhere in a conversation.

    Args:
        messages: the conversation.

    Returns:
        The word.
    """
    used, number = repr(messages), 0
    while f"treetrain-mark-{number}-" in used:
        number += 1
    return f"treetrain-mark-{number}-"
