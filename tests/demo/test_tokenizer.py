from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from treetrain.demo.make_tokenizer import MARKERS, SHIPPED, VOCABULARY, write_tokenizer
from treetrain.demo.trajectories import make_rows

TOKENIZER = AutoTokenizer.from_pretrained(SHIPPED)
ROW = make_rows(tasks=1, trials=1, seed=0)[0]


def render(messages: list[dict], *, prompt: bool = False) -> str:
    return TOKENIZER.apply_chat_template(
        messages, tools=ROW["tools"], tokenize=False, add_generation_prompt=prompt
    )


@settings(deadline=None)
@given(st.text(max_size=40))
def test_any_text_comes_back_from_encode_and_decode(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER(text)["input_ids"]) == text


def test_rendered_conversation_comes_back_from_encode_and_decode() -> None:
    text = render(ROW["messages"])
    assert TOKENIZER.decode(TOKENIZER(text)["input_ids"]) == text


def test_markers_are_one_token_each() -> None:
    assert [TOKENIZER(marker)["input_ids"] for marker in MARKERS] == [
        [i] for i in range(len(MARKERS))
    ]
    assert (TOKENIZER.pad_token_id, TOKENIZER.eos_token_id) == (0, 1)


def test_history_has_no_thinking_and_the_last_step_has_its_own() -> None:
    messages = ROW["messages"]
    steps = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    assert len(steps) >= 3
    for last in steps:
        text = render(messages[: last + 1])
        for step in steps:
            shown = f"<think>\n{messages[step]['reasoning_content']}\n</think>" in text
            assert shown == (step == last)
        assert text.count("<think>") == 1


def test_step_continues_the_prompt_it_was_sampled_from() -> None:
    messages = ROW["messages"]
    for last, message in enumerate(messages):
        if message["role"] == "assistant":
            prompt = render(messages[:last], prompt=True)
            assert render(messages[: last + 1]).startswith(prompt)
            assert prompt.endswith("<|assistant|>\n")


def test_tools_and_calls_are_rendered() -> None:
    text = render(ROW["messages"])
    for tool in ROW["tools"]:
        assert json.dumps(tool["function"]) in text
    call = ROW["messages"][2]["tool_calls"][0]["function"]
    assert f"<tool_call>\n{call['name']} {call['arguments']}\n</tool_call>" in text


def test_arguments_as_an_object_are_rendered_as_their_text() -> None:
    messages = json.loads(json.dumps(ROW["messages"]))
    for message in messages:
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    assert render(messages) == render(ROW["messages"])


def test_training_again_gives_the_shipped_tokenizer(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, seed=1)
    again = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    shipped = json.loads((SHIPPED / "tokenizer.json").read_text(encoding="utf-8"))
    assert again["model"]["vocab"] == shipped["model"]["vocab"]
    assert again["model"]["merges"] == shipped["model"]["merges"]
    assert len(AutoTokenizer.from_pretrained(tmp_path)) == VOCABULARY


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
def test_shipped_files_lie_in_the_package(name: str) -> None:
    assert (SHIPPED / name).is_file()
