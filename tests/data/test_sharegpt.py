from __future__ import annotations

from typing import Any

import pytest

from treetrain.data.rows import read_samples
from treetrain.data.sharegpt import ShareGptRow, read_turns


def read(fields: dict[str, Any]) -> Any:
    return read_turns(ShareGptRow.model_validate(fields), fields, "f:1")


def turn(speaker: str, value: str, **more: Any) -> dict[str, Any]:
    return {"from": speaker, "value": value, **more}


def test_turns_become_messages_and_calls_become_tool_calls():
    call = '[{"name": "f", "arguments": {"a": 1}}]'
    talk = [
        turn("human", "q"),
        turn("function_call", call),
        turn("observation", "o"),
        turn("gpt", "a"),
    ]
    messages, trained = read({"conversations": talk, "system": "be kind"})
    assert [one["role"] for one in messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert messages[2]["tool_calls"][0]["function"] == {"name": "f", "arguments": {"a": 1}}
    assert trained == [2, 4]


def test_a_turn_of_weight_0_is_not_trained():
    talk = [turn("human", "q"), turn("gpt", "a", weight=0), turn("gpt", "b", weight=1)]
    assert read({"conversations": talk})[1] == [2]


def test_a_conversation_is_that_of_the_same_messages(tmp_path, tokenizer, write_rows):
    talk = [turn("human", "q"), turn("gpt", "a"), turn("human", "r"), turn("gpt", "b")]
    messages = [
        {"role": {"human": "user", "gpt": "assistant"}[one["from"]], "content": one["value"]}
        for one in talk
    ]
    path = write_rows({"conversations": talk}, {"messages": messages})
    for expand in ("whole", "per_step"):
        samples = read_samples(path, tokenizer=tokenizer, expand=expand)
        half = len(samples) // 2
        for left, right in zip(samples[:half], samples[half:], strict=True):
            assert left.tokens.tolist() == right.tokens.tolist()
            assert left.weights.tolist() == right.weights.tolist()


@pytest.mark.parametrize(
    ("one", "message"),
    [
        (turn("humn", "q"), r"^f:1: field 'conversations\[0\].from' must be one of system, human"),
        ({"value": "q"}, r"^f:1: field 'conversations\[0\].from' is required"),
        (turn("function_call", "{"), r"conversations\[0\].value' must be the JSON of a function"),
        (turn("function_call", "[1]"), r"conversations\[0\].value' must name a function"),
        (turn("function_call", "[" * 9999), r"value' must be the JSON of a function call"),
    ],
)
def test_a_wrong_turn_names_file_line_and_field(one, message):
    with pytest.raises(ValueError, match=message):
        read({"conversations": [one]})
