from __future__ import annotations

from typing import Any

import pytest

from treetrain.data.chat import Chat
from treetrain.data.kept_history import text_after_turn

CALL = {"function": {"name": "water", "arguments": {"bench": 3}}}


def talk(*contents: str) -> list[dict[str, Any]]:
    return [
        {"role": ("user", "assistant")[place % 2], "content": content}
        for place, content in enumerate(contents)
    ]


def after(chat: Chat, messages: list[dict[str, Any]], place: int) -> str | None:
    context = chat.render(messages, None, prompt=True)
    return text_after_turn(chat, messages, None, place=place, context=context)


def test_what_follows_the_turn_is_found_though_the_thought_is_gone(tokenizer, templates):
    chat = Chat(tokenizer, templates.stripping)
    messages = talk("q", "<think>\nhm\n</think>\n\nyes", "and?")
    assert after(chat, messages, 1) == "\n<|im_start|>user\nand?<|im_end|>\n<|im_start|>assistant\n"


def test_every_message_behind_the_turn_is_in_it(tokenizer, templates):
    chat = Chat(tokenizer, templates.chatml)
    found = after(chat, talk("q", "yes", "and?", "no", "well"), 1)
    assert found is not None
    assert [word in found for word in ("yes", "and?", "no", "well")] == [False, True, True, True]


def test_a_tool_that_answers_a_call_keeps_the_call(tokenizer, templates):
    chat = Chat(tokenizer, templates.strict)
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "x", "tool_calls": [CALL]},
        {"role": "tool", "content": "ok"},
    ]
    assert after(chat, messages, 1) == "\n<|im_start|>tool\nok<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("template", ["last_differs"])
def test_a_turn_that_ends_otherwise_in_history_is_not_guessed(tokenizer, templates, template):
    chat = Chat(tokenizer, getattr(templates, template))
    assert after(chat, talk("q", "yes", "and?"), 1) is None
