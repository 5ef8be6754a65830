from __future__ import annotations

from typing import Any

import pytest
from tests.data.counted import read_counted

from treetrain.data.formats import parse_row
from treetrain.data.rows import read_samples

USER = {"source": "user", "message": "q"}


def agent(message: str = "a", **more: Any) -> dict[str, Any]:
    return {"source": "agent", "message": message, **more}


def ids(prompt: list[int] | None, sampled: list[int], logprobs: Any = None) -> dict[str, Any]:
    metrics = {"prompt_token_ids": prompt, "completion_token_ids": sampled, "logprobs": logprobs}
    return {"metrics": {name: value for name, value in metrics.items() if value is not None}}


def document(*steps: Any, version: str = "ATIF-v1.7", **more: Any) -> dict[str, Any]:
    return {
        "schema_version": version,
        "session_id": "run",
        "agent": {"name": "x", "version": "1"},
        "steps": list(steps),
        **more,
    }


CALLING = agent(
    "",
    reasoning_content="why",
    tool_calls=[{"tool_call_id": "c", "function_name": "water", "arguments": {"bench": 3}}],
    observation={"results": [{"source_call_id": "c", "content": "wet"}]},
)


def test_steps_are_the_conversation_of_the_same_messages(tokenizer, templates, write_rows):
    call = {"name": "water", "arguments": {"bench": 3}}
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "", "reasoning_content": "why",
         "tool_calls": [{"id": "c", "type": "function", "function": call}]},
        {"role": "tool", "tool_call_id": "c", "name": "water", "content": "wet"},
        {"role": "assistant", "content": "done"},
    ]  # fmt: skip
    path = write_rows(document(USER, CALLING, agent("done")), {"messages": messages})
    for expand in ("whole", "per_step"):
        samples = read_samples(path, tokenizer=tokenizer, expand=expand)
        half = len(samples) // 2
        for left, right in zip(samples[:half], samples[half:], strict=True):
            assert left.tokens.tolist() == right.tokens.tolist()
            assert left.weights.tolist() == right.weights.tolist()


def test_recorded_ids_win_over_text_and_need_no_tokenizer(write_rows):
    row = document(
        USER,
        agent(**ids([1, 2], [3, 4], [-0.5, -1.0])),
        agent(**ids([1, 2, 3, 4, 9], [5], [-2.0])),
        agent(**ids([1, 8], [6], [-3.0])),
        agent(**ids([1, 8, 6, 7], [6])),
    )
    whole, report = read_counted(write_rows(row))
    assert [sample.tokens.tolist() for sample in whole] == [
        [1, 2, 3, 4, 9, 5],
        [1, 8, 6],
        [1, 8, 6, 7, 6],
    ]
    assert whole[0].weights.tolist() == [0, 0, 1, 1, 0, 1]
    assert whole[0].logprobs is not None
    assert whole[0].logprobs.tolist() == [0, 0, -0.5, -1.0, 0, -2.0]
    assert whole[2].logprobs is None
    assert {sample.trajectory for sample in whole} == {"run"}
    assert (report.recorded_steps, report.recorded_sequences) == (4, 3)
    steps = read_samples(write_rows(row), expand="per_step")
    assert [sample.tokens.tolist() for sample in steps] == [
        [1, 2, 3, 4],
        [1, 2, 3, 4, 9, 5],
        [1, 8, 6],
        [1, 8, 6, 7, 6],
    ]
    assert sum(int(one.weights.sum()) for one in steps) == sum(
        int(one.weights.sum()) for one in whole
    )


def test_where_only_what_was_sampled_was_recorded_the_context_is_rendered(tokenizer, write_rows):
    [sample] = read_samples(
        write_rows(document(USER, agent(**ids(None, [3, 4])))), tokenizer=tokenizer
    )
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "q"}], tokenize=False, add_generation_prompt=True
    )
    context = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert sample.tokens.tolist() == [*context, 3, 4]
    assert sample.weights.tolist() == [0.0] * len(context) + [1.0, 1.0]


def test_sub_agents_are_sequences_of_their_own_in_the_group_of_the_row(write_rows):
    inner = document(USER, agent(**ids([5], [6])), trajectory_id="sub")
    held = {"trajectory_id": "sub"}
    elsewhere = {"session_id": "gone", "trajectory_path": "x.json"}
    asked = agent(
        **ids([1], [2]),
        observation={"results": [{"content": None, "subagent_trajectory_ref": [held, elsewhere]}]},
    )
    row = document(USER, asked, group="task", subagent_trajectories=[inner], advantage=2.0)
    samples, report = read_counted(write_rows(row))
    assert [sample.tokens.tolist() for sample in samples] == [[1, 2], [5, 6]]
    assert [sample.trajectory for sample in samples] == ["run", "sub"]
    assert [sample.group for sample in samples] == ["task"] * 2
    assert [sample.advantage for sample in samples] == [2.0] * 2
    assert report.elsewhere == 1
    assert "subagent_trajectories[0]" in (samples[1].source or "")


def test_copied_context_and_steps_without_a_model_are_not_trained(tokenizer, write_rows):
    row = document(
        USER,
        agent("old", is_copied_context=True),
        agent("fixed", llm_call_count=0),
        agent("new", observation={"results": [{"content": "o"}]}),
    )
    samples, report = read_counted(write_rows(row), tokenizer=tokenizer, expand="per_step")
    assert len(samples) == 1
    assert (report.not_sampled, report.plain_observations) == (2, 1)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (document(USER, version="ATIF-v2.0"), "field 'schema_version' must be ATIF-v1.x"),
        (document({"source": "robot", "message": ""}), r"field 'steps\[0\].source' must be"),
        (document(USER, agent(**ids([1], [2, 3], [0.0]))), r"logprobs' has 1 entries for 2 comple"),
        (
            document(agent(metrics={"prompt_token_ids": [1]})),
            r"field 'steps\[0\].metrics.completion_token_ids' is required where",
        ),
        (document(agent(**ids([1], [-2]))), r"field 'completion_token_ids\[0\]' must be in 0"),
        (document(USER, agent()), "^data.jsonl:1: rows of text need a tokenizer"),
        (document(), r"^data.jsonl:1: field 'steps' must have at least one step"),
    ],
)
def test_a_wrong_document_names_file_line_and_field(row, message, write_rows):
    with pytest.raises(ValueError, match=message) as caught:
        read_samples(write_rows(row))
    assert str(caught.value).startswith("data.jsonl:1: ")


def test_a_row_with_steps_of_another_kind_is_no_document():
    with pytest.raises(ValueError, match="fit no known kind of row"):
        parse_row({"steps": []}, "f:1")
