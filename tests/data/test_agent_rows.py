from __future__ import annotations

from typing import Any

import pytest

from treetrain.data.agent_rows import AgentRow, read_agent_messages
from treetrain.data.rows import read_samples

HISTORY = [
    {"role": "system", "content": "s", "agent": "main", "message_type": "system_prompt"},
    {"role": "user", "content": "d", "agent": "main", "is_demo": True},
    {"role": "assistant", "content": "e", "agent": "main", "is_demo": True},
    {"role": "user", "content": "q", "agent": "main", "message_type": "observation"},
    {"role": "assistant", "content": "a", "thought": "a", "action": "ls", "message_type": "action"},
    {"role": "tool", "content": "o", "tool_call_ids": ["c1"], "message_type": "observation"},
    {"role": "assistant", "content": "b"},
]


def read(fields: dict[str, Any]) -> Any:
    return read_agent_messages(AgentRow.model_validate(fields), "f:1")


def test_history_is_the_conversation_and_demonstrations_are_not_trained():
    [(messages, trained)] = read({"history": HISTORY, "trajectory": [{"action": "ls"}]})
    assert [one["role"] for one in messages] == [one["role"] for one in HISTORY]
    assert trained == [4, 6]
    assert messages[5] == {"role": "tool", "content": "o", "tool_call_id": "c1"}


def test_a_trajectory_of_messages_is_a_conversation():
    steps = [
        {"role": "system", "system_prompt": "s", "text": None},
        {"role": "user", "text": "q"},
        {"role": "ai", "text": "a"},
    ]
    [(messages, trained)] = read({"trajectory": steps})
    assert [(one["role"], one["content"]) for one in messages] == [
        ("system", "s"),
        ("user", "q"),
        ("assistant", "a"),
    ]
    assert trained == [2]


def test_steps_that_kept_their_input_are_conversations_of_one_trajectory(tokenizer, write_rows):
    query = [{"role": "user", "content": "q"}]
    longer = [*query, {"role": "assistant", "content": "a"}, {"role": "user", "content": "o"}]
    row = {
        "instance_id": "task",
        "trajectory": [
            {"query": query, "response": "a"},
            {"query": longer, "response": "b"},
        ],
    }
    found = read(row)
    assert [trained for _, trained in found] == [[1], [3]]
    samples = read_samples(write_rows(row), tokenizer=tokenizer)
    assert [sample.trajectory for sample in samples] == ["data.jsonl:1"] * 2
    assert {sample.group for sample in samples} == {"task"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"history": []}, "^f:1: field 'history' must have at least one message"),
        ({"trajectory": [{"action": "ls"}]}, r"^f:1: field 'trajectory\[0\]' must have a role, or"),
    ],
)
def test_a_run_without_messages_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        read(fields)
