from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treetrain.data.chat import Chat
from treetrain.data.turns import calls_missing, find_turns, split_step, tools_missing

PIECES = ["a", "\n", " ", "<think>", "</think>", "treetrain-mark-0-", "assistant\n"]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=4).map("".join)


def say(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def turn_texts(chat: Chat, messages: list[dict[str, Any]]) -> list[str]:
    text, turns = find_turns(chat, messages, None)
    return [text[turn.start : turn.end] for turn in turns]


TALK = [
    say("system", "be kind"),
    say("user", "a"),
    say("assistant", "<think>\nhm\n</think>\n\none"),
    say("user", "b"),
    say("assistant", "<think>\nwell\n</think>\n\ntwo"),
]


def test_a_turn_goes_from_the_generation_prompt_to_the_end_of_turn_token(tokenizer, templates):
    assert turn_texts(Chat(tokenizer, templates.chatml), TALK) == [
        "<think>\nhm\n</think>\n\none<|im_end|>",
        "<think>\nwell\n</think>\n\ntwo<|im_end|>",
    ]


def test_turns_are_found_where_the_template_strips_thinking_from_history(tokenizer, templates):
    assert turn_texts(Chat(tokenizer, templates.stripping), TALK) == [
        "one<|im_end|>",
        "<think>\nwell\n</think>\n\ntwo<|im_end|>",
    ]


def test_turns_are_found_where_history_lacks_what_the_generation_prompt_opens(tokenizer, templates):
    talk = [say("user", "a"), say("assistant", "b"), *TALK[3:]]
    assert turn_texts(Chat(tokenizer, templates.opened_thought), talk) == [
        "b<|im_end|>",
        "well\n</think>\n\ntwo<|im_end|>",
    ]


def test_a_turn_is_not_looked_for_in_the_turns_before_it(tokenizer, templates):
    talk = [
        say("user", "a"),
        say("assistant", "<think>\nhm"),
        say("user", "b"),
        say("assistant", "c"),
    ]
    assert turn_texts(Chat(tokenizer, templates.opened_thought), talk) == [
        "hm<|im_end|>",
        "c<|im_end|>",
    ]


def test_a_template_that_writes_of_one_message_in_another_place_is_refused(tokenizer, templates):
    counting = "{{ messages | map(attribute='content') | join | length }}" + templates.chatml
    with pytest.raises(ValueError, match=r"messages\[2\] cannot be found"):
        find_turns(Chat(tokenizer, counting), TALK, None)


def test_an_assistant_message_may_come_first(tokenizer, templates):
    talk = [say("assistant", "hello"), say("user", "a"), say("assistant", "b")]
    assert turn_texts(Chat(tokenizer, templates.chatml), talk) == ["hello<|im_end|>", "b<|im_end|>"]


def test_equal_messages_have_turns_of_their_own(tokenizer, templates):
    talk = [say("user", "a"), say("assistant", "a"), say("user", "a"), say("assistant", "a")]
    text, turns = find_turns(Chat(tokenizer, templates.stripping), talk, None)
    assert [text[turn.start : turn.end] for turn in turns] == [
        "a<|im_end|>",
        "<think>\n\n</think>\n\na<|im_end|>",
    ]
    assert turns[0].end < turns[1].start


def test_a_template_that_wants_calls_before_answers_is_marked_with_the_calls_kept(
    tokenizer, templates
):
    call = {"type": "function", "function": {"name": "look", "arguments": {"x": 1}}}
    talk = [
        say("user", "a"),
        say("assistant", "hm</think> b ", tool_calls=[call]),
        say("tool", "c"),
        say("assistant", "d"),
    ]
    stripping = "m.content.split('</think>')[0 if loop.last else -1] | trim"
    chat = Chat(tokenizer, templates.strict.replace("m.content | trim", stripping))
    assert turn_texts(chat, talk)[0] == 'b<call>look {"x": 1}</call><|im_end|>'


def test_a_last_turn_that_ends_otherwise_is_refused_by_message(tokenizer, templates):
    with pytest.raises(ValueError, match=r"messages\[2\] cannot be found.*expand='per_step'"):
        find_turns(Chat(tokenizer, templates.last_differs), TALK, None)


def test_without_an_end_of_turn_token_the_turn_ends_with_the_text(tokenizer, templates):
    assert turn_texts(Chat(tokenizer, templates.no_closing), [TALK[1], say("assistant", "b")]) == [
        "b"
    ]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=3), st.booleans())
def test_turns_of_a_plain_template_are_its_contents(tokenizer, templates, pairs, greeted):
    talk = [say("system", "s")] if greeted else []
    for question, answer in pairs:
        talk += [say("user", question), say("assistant", answer)]
    expected = [f"{answer}<|im_end|>" for _, answer in pairs]
    assert turn_texts(Chat(tokenizer, templates.chatml), talk) == expected
    # The second mechanism must find the same, where history lacks what the last turn has.
    if all("</think>" not in answer and not answer.startswith("\n") for _, answer in pairs):
        expected[-1] = "<think>\n\n</think>\n\n" + expected[-1]
        assert turn_texts(Chat(tokenizer, templates.stripping), talk) == expected


def test_a_step_s_context_is_rendered_as_it_stood_then(tokenizer, templates):
    context, sampled = split_step(Chat(tokenizer, templates.stripping), TALK, None, place=4)
    assert context == (
        "<|im_start|>system\nbe kind<|im_end|>\n<|im_start|>user\na<|im_end|>\n"
        "<|im_start|>assistant\none<|im_end|>\n<|im_start|>user\nb<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert sampled == "<think>\nwell\n</think>\n\ntwo<|im_end|>"


def test_a_step_has_the_thinking_that_its_whole_conversation_lost(tokenizer, templates):
    _, sampled = split_step(Chat(tokenizer, templates.stripping), TALK, None, place=2)
    assert sampled == "<think>\nhm\n</think>\n\none<|im_end|>"


def test_template_variables_move_the_edge_of_a_step(tokenizer, templates):
    talk = [say("user", "a"), say("assistant", "b")]
    plain = split_step(Chat(tokenizer, templates.stripping), talk, None, place=1)
    quiet = split_step(
        Chat(tokenizer, templates.stripping, {"no_thinking": True}), talk, None, place=1
    )
    assert plain[1] == "<think>\n\n</think>\n\nb<|im_end|>"
    assert quiet[1] == "b<|im_end|>"
    assert "".join(plain) == "".join(quiet)


def test_a_step_ends_with_white_space_that_the_model_sampled(tokenizer, templates):
    talk = [say("user", "a"), say("assistant", "b \n")]
    assert split_step(Chat(tokenizer, templates.chatml), talk, None, place=1)[1] == "b \n<|im_end|>"
    assert split_step(Chat(tokenizer, templates.no_closing), talk, None, place=1)[1] == "b \n"


def test_a_generation_prompt_that_no_message_follows_is_refused_with_both_texts(
    tokenizer, templates
):
    with pytest.raises(
        ValueError, match=r"messages\[1\] is not what.*'<think>\\n'.*'b<\|im_end\|>'"
    ):
        split_step(
            Chat(tokenizer, templates.opened_thought),
            [say("user", "a"), say("assistant", "b")],
            None,
            place=1,
        )


def test_a_call_that_is_not_in_the_text_is_noticed():
    message = say("assistant", "", tool_calls=[{"function": {"name": "look"}}, {"name": "stop"}])
    assert calls_missing(message, "look")
    assert not calls_missing(message, "look stop")
    assert not calls_missing(say("assistant", "x"), "")


def test_a_function_named_in_the_words_of_a_message_is_no_call():
    call = [{"name": "look"}]
    message = say("assistant", "let me look ", reasoning_content="look?", tool_calls=call)
    assert calls_missing(message, "<think>look?</think>let me look<|end|>")
    assert not calls_missing(message, "<think>look?</think>let me look<call>look</call><|end|>")


def test_a_schema_that_is_not_in_the_text_is_noticed():
    tools = [{"type": "function", "function": {"name": "look"}}]
    assert tools_missing(tools, "")
    assert not tools_missing(tools, "look")
    assert not tools_missing(None, "")
