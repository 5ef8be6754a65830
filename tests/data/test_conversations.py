from __future__ import annotations

from typing import Any

import pytest

from treetrain.data.chat import Chat
from treetrain.data.conversations import read_conversations, read_threads
from treetrain.data.formats import parse_row

USER = {"role": "user", "content": "a"}
ANSWER = {"role": "assistant", "content": "b"}


def read(chat: Chat, fields: dict[str, Any], **arguments: Any) -> Any:
    [(row, fields, source)] = parse_row(fields, "f:1")
    arguments = {"tools": None, **arguments}
    [found] = read_conversations(chat, row, fields, source=source, **arguments)  # type: ignore[arg-type]
    return found


def tree(text: str, role: str, *replies: dict[str, Any]) -> dict[str, Any]:
    return {"text": text, "role": role, "replies": list(replies)}


def threads(fields: dict[str, Any], expand: Any) -> list[Any]:
    [(row, _, source)] = parse_row(fields, "f:1")
    return read_threads(row, expand=expand, source=source)  # type: ignore[arg-type]


def test_every_assistant_message_of_a_conversation_is_trained(tokenizer):
    talk = read(Chat(tokenizer), {"messages": [USER, ANSWER, USER, ANSWER]})
    assert talk.trained == [1, 3]


def test_of_a_prompt_with_a_completion_only_the_completion_is_trained(tokenizer):
    talk = read(Chat(tokenizer), {"prompt": [USER, ANSWER, USER], "completion": [ANSWER]})
    assert len(talk.messages) == 4
    assert talk.trained == [3]


def test_content_becomes_text(tokenizer):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": None}]
    talk = read(Chat(tokenizer), {"messages": messages})
    assert [message["content"] for message in talk.messages] == ["ab", ""]


@pytest.mark.parametrize("wrapped", [True, False])
def test_arguments_stay_text_where_the_template_writes_text_and_are_parsed_elsewhere(
    tokenizer, templates, wrapped
):
    call = {"name": "f", "arguments": '{"x":  1}'}
    message = {"role": "assistant", "tool_calls": [{"function": call} if wrapped else call]}
    kept = read(Chat(tokenizer), {"messages": [USER, message]}).messages[1]["tool_calls"][0]
    parsed = read(Chat(tokenizer, templates.strict), {"messages": [USER, message]})
    parsed = parsed.messages[1]["tool_calls"][0]
    kept, parsed = (c["function"] if wrapped else c for c in (kept, parsed))
    assert kept["arguments"] == '{"x":  1}'
    assert parsed["arguments"] == {"x": 1}


def test_arguments_that_are_no_json_are_named(tokenizer, templates):
    call = {"function": {"name": "f", "arguments": "{x"}}
    with pytest.raises(
        ValueError,
        match=r"f:1: field 'messages\[1\].tool_calls\[0\].function.arguments' must be JSON",
    ):
        read(
            Chat(tokenizer, templates.strict),
            {"messages": [USER, {"role": "assistant", "tool_calls": [call]}]},
        )


def test_a_row_s_own_tools_go_before_the_given_ones(tokenizer):
    chat, given = Chat(tokenizer), [{"name": "given"}]
    assert read(chat, {"messages": [USER], "tools": [{"name": "own"}]}, tools=given).tools == [
        {"name": "own"}
    ]
    assert read(chat, {"messages": [USER], "tools": []}, tools=given).tools == []
    assert read(chat, {"messages": [USER]}, tools=given).tools == given


def test_no_messages_are_refused(tokenizer):
    with pytest.raises(ValueError, match=r"f:1: field 'messages' must have at least one message"):
        read(Chat(tokenizer), {"messages": []})


FOREST = {
    "message_tree_id": "t",
    "prompt": tree(
        "q",
        "prompter",
        tree(
            "a", "assistant", tree("q1", "prompter"), tree("q2", "prompter", tree("c", "assistant"))
        ),
        tree("b", "assistant"),
    ),
}


def test_whole_threads_go_from_the_root_to_each_leaf():
    whole = threads(FOREST, "whole")
    assert ["".join(m["content"] for m in t.messages) for t in whole] == ["qaq1", "qaq2c", "qb"]
    assert [t.trained for t in whole] == [[1], [1, 3], [1]]
    assert [m["role"] for m in whole[1].messages] == ["user", "assistant", "user", "assistant"]
    assert {t.group for t in whole} == {"t"}


def test_per_step_each_assistant_message_of_a_tree_is_trained_once():
    steps = threads(FOREST, "per_step")
    assert ["".join(m["content"] for m in t.messages) for t in steps] == ["qa", "qaq2c", "qb"]
    assert [t.trained for t in steps] == [[1], [3], [1]]


def test_a_tree_of_a_thousand_replies_in_a_row_is_read():
    from treetrain.data.formats import TreeRow

    reply: Any = TreeRow.model_validate({"prompt": tree("x", "assistant")}).prompt
    for _ in range(3000):
        reply = reply.model_copy(update={"replies": [reply]})
    row = TreeRow.model_construct(prompt=reply, group=None, trajectory_id=None, message_tree_id=1)
    assert len(read_threads(row, expand="whole", source="f:1")[0].messages) == 3001
