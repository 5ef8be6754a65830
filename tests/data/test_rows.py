from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.data.counted import read_counted

from treetrain.data import reader
from treetrain.data.chat import Chat
from treetrain.data.rows import read_samples
from treetrain.data.turns import find_turns, split_step

CALL = {"function": {"name": "water", "arguments": '{"bench": 3}'}}
TALK = [
    {"role": "system", "content": "be kind"},
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [CALL]},
    {"role": "tool", "content": "ok"},
    {"role": "assistant", "content": "done", "reasoning_content": "well"},
    {"role": "user", "content": "thanks"},
]
TOOLS = [{"type": "function", "function": {"name": "water", "description": "d"}}]


def write(folder: Path, *rows: Any) -> Path:
    path = folder / "data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def trained_text(tokenizer: Any, sample: Any) -> str:
    return tokenizer.decode(sample.tokens[sample.weights == 1].tolist())


def test_rows_keep_the_order_of_the_file(tmp_path):
    samples = read_samples(write(tmp_path, *({"input_ids": [n]} for n in range(5))))
    assert [sample.tokens.tolist() for sample in samples] == [[0], [1], [2], [3], [4]]
    assert samples[3].source == "data.jsonl:4"


def test_one_json_array_is_read_like_lines(tmp_path):
    path = tmp_path / "data.json"
    path.write_text(
        "\ufeff" + json.dumps([{"input_ids": [1]}, {"input_ids": [2]}], indent=1), "utf-8"
    )
    samples = read_samples(path)
    assert [sample.source for sample in samples] == ["data.json[0]", "data.json[1]"]


def test_empty_lines_are_no_rows_and_keep_the_count(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text('{"input_ids": [1]}\r\n\n{"input_ids": [2]}', "utf-8")
    samples, report = read_counted(path)
    assert [sample.source for sample in samples] == ["data.jsonl:1", "data.jsonl:3"]
    assert report.rows == 2


def test_whole_equals_rendering_and_encoding_once(tmp_path, tokenizer):
    [sample] = read_samples(
        write(tmp_path, {"messages": TALK, "tools": TOOLS}), tokenizer=tokenizer
    )
    text = tokenizer.apply_chat_template(TALK, tools=TOOLS, tokenize=False)
    assert sample.tokens.tolist() == tokenizer(text, add_special_tokens=False)["input_ids"]
    _, turns = find_turns(Chat(tokenizer), TALK, TOOLS)
    assert trained_text(tokenizer, sample) == "".join(text[t.start : t.end] for t in turns)
    assert sample.trajectory is None


def test_per_step_equals_encoding_context_and_sampled_text_apart(tmp_path, tokenizer):
    samples, report = read_counted(
        write(tmp_path, {"messages": TALK, "tools": TOOLS, "advantage": 2}),
        tokenizer=tokenizer,
        expand="per_step",
    )
    assert len(samples) == 2
    for sample, place in zip(samples, (2, 4), strict=True):
        context = tokenizer.apply_chat_template(
            TALK[:place], tools=TOOLS, tokenize=False, add_generation_prompt=True
        )
        ids = tokenizer(context, add_special_tokens=False)["input_ids"]
        sampled = split_step(Chat(tokenizer), TALK, TOOLS, place=place)[1]
        assert sample.tokens.tolist() == ids + tokenizer(sampled)["input_ids"]
        assert sample.weights.tolist() == [0.0] * len(ids) + [1.0] * (len(sample) - len(ids))
        assert sample.trajectory == "data.jsonl:1"
        assert sample.advantage == 2
        assert sample.source == f"data.jsonl:1: messages[{place}]"
    assert trained_text(tokenizer, samples[0]).startswith("<think>\nhm\n</think>\n<tool_call>")
    assert "hm" not in tokenizer.decode(samples[1].tokens.tolist())
    assert (report.open_conversations, report.messages_after) == (1, 1)


def test_a_named_trajectory_is_kept(tmp_path, tokenizer):
    path = write(tmp_path, {"messages": TALK, "tools": TOOLS, "trajectory_id": 7})
    for expand in ("whole", "per_step"):
        samples = read_samples(path, tokenizer=tokenizer, expand=expand)
        assert {sample.trajectory for sample in samples} == {7}


def test_a_prompt_and_its_completion_are_encoded_apart(tmp_path, tokenizer):
    [sample] = read_samples(
        write(tmp_path, {"prompt": "wat", "completion": "er"}), tokenizer=tokenizer
    )
    prompt, completion = (tokenizer(text)["input_ids"] for text in ("wat", "er"))
    assert sample.tokens.tolist() == [*prompt, *completion, tokenizer.eos_token_id]
    assert sample.weights.tolist() == [0.0] * len(prompt) + [1.0] * (len(completion) + 1)


def test_the_end_of_a_completion_may_be_left_out(tmp_path, tokenizer):
    path = write(tmp_path, {"prompt": "a", "completion": "b"})
    [sample] = read_samples(path, tokenizer=tokenizer, end_completions=False)
    assert sample.tokens.tolist() == tokenizer("a")["input_ids"] + tokenizer("b")["input_ids"]


def test_recorded_ids_are_kept_as_they_were_sampled(tmp_path, tokenizer):
    ids = [ord(c) % 200 for c in "any ids at all"]
    [sample] = read_samples(
        write(tmp_path, {"prompt": "a", "ids": ids, "text": "?", "retok": [1]}), tokenizer=tokenizer
    )
    context = tokenizer.apply_chat_template(
        [{"role": "user", "content": "a"}], tokenize=False, add_generation_prompt=True
    )
    assert sample.tokens.tolist() == tokenizer(context)["input_ids"] + ids
    assert sample.weights.sum() == len(ids)


def test_tools_beside_the_file_are_used_named_and_can_be_left_out(tmp_path, tokenizer):
    path = write(tmp_path, {"messages": TALK})
    (tmp_path / "tools.json").write_text(json.dumps(TOOLS), "utf-8")
    [with_tools], report = read_counted(path, tokenizer=tokenizer)
    assert report.tools_file == str(tmp_path / "tools.json")
    assert "description" in tokenizer.decode(with_tools.tokens.tolist())
    [without], report = read_counted(path, tokenizer=tokenizer, tools=[])
    assert report.tools_file is None
    assert "description" not in tokenizer.decode(without.tokens.tolist())
    [given] = read_samples(path, tokenizer=tokenizer, tools=tmp_path / "tools.json")
    assert given.tokens.tolist() == with_tools.tokens.tolist()


def test_only_selected_rows_are_read_and_the_others_counted(tmp_path):
    rows = [{"input_ids": [n], "kind": n % 2} for n in range(5)]
    samples, report = read_counted(write(tmp_path, *rows), select={"kind": "1"})
    assert [sample.tokens[0] for sample in samples] == [1, 3]
    assert report.not_selected == 3
    assert "3 of 5 rows were not selected" in report.notes()


def test_calls_that_the_template_leaves_out_are_refused_or_counted(tmp_path, tokenizer, templates):
    path = write(tmp_path, {"messages": TALK})
    for expand in ("whole", "per_step"):
        with pytest.raises(
            ValueError, match=r"^data.jsonl:1: messages\[2\].tool_calls are not written"
        ):
            read_samples(path, tokenizer=tokenizer, expand=expand, chat_template=templates.chatml)
        _, report = read_counted(
            path,
            tokenizer=tokenizer,
            expand=expand,
            chat_template=templates.chatml,
            unrendered="count",
        )
        assert report.calls_missing == 1


def test_tools_that_the_template_leaves_out_are_refused_or_counted(tmp_path, tokenizer, templates):
    path = write(tmp_path, {"messages": TALK[:2] + TALK[4:], "tools": TOOLS})
    with pytest.raises(ValueError, match=r"^data.jsonl:1: the tools are not written"):
        read_samples(path, tokenizer=tokenizer, chat_template=templates.chatml)
    _, report = read_counted(
        path, tokenizer=tokenizer, chat_template=templates.chatml, unrendered="count"
    )
    assert report.tools_missing == 1


def test_what_has_no_trained_token_is_kept_and_counted(tmp_path, tokenizer):
    samples, report = read_counted(
        write(tmp_path, {"messages": TALK[:2]}, {"input_ids": [1, 2], "loss_mask": [1, 0]}),
        tokenizer=tokenizer,
    )
    assert len(samples) == 2
    assert report.untrained == 2


def test_rows_without_messages_are_counted_where_steps_were_asked_for(tmp_path, tokenizer):
    rows = [
        {"input_ids": [1, 2]},
        {"prompt": "a", "completion": "b"},
        {"prompt": "a", "ids": [1]},
        {"messages": TALK[:3]},
    ]
    path = write(tmp_path, *rows)
    note = "3 rows hold no messages: each is one sequence, also per step"
    _, whole = read_counted(path, tokenizer=tokenizer)
    _, per_step = read_counted(path, tokenizer=tokenizer, expand="per_step")
    assert (whole.already_sequences, per_step.already_sequences) == (0, 3)
    assert note in per_step.notes()
    assert note not in whole.notes()


def test_ids_that_the_tokenizer_does_not_have_are_counted_and_the_first_row_named(
    tmp_path, tokenizer
):
    size = len(tokenizer)
    rows = [[1, size - 1], [1, size, size + 7], [size], []]
    path = write(tmp_path, *({"input_ids": row} for row in rows), {"prompt": "a", "ids": [size]})
    _, report = read_counted(path, tokenizer=tokenizer)
    assert report.ids_outside == 3
    assert report.first_outside == f"data.jsonl:2 with id {size + 7} of {size}"
    assert any(
        "outside the tokenizer's vocabulary, first data.jsonl:2" in n for n in report.notes()
    )
    _, without = read_counted(write(tmp_path, {"input_ids": [size]}))
    assert without.ids_outside == 0


def test_a_template_without_an_end_of_turn_token_is_mentioned(tmp_path, tokenizer, templates):
    path = write(tmp_path, {"messages": TALK[:2] + TALK[4:]})
    _, report = read_counted(
        path, tokenizer=tokenizer, chat_template=templates.no_closing, expand="per_step"
    )
    assert report.no_closing


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"input_ids": [1]}\n{"input_ids": [1}\n', r"^data.jsonl:2: must be JSON.*column 17"),
        ("3\n", r"^data.jsonl:1: a row must be a JSON object, got int"),
        ("", r"data.jsonl: the file must give at least one sequence, got none of 0 rows"),
        ('{"messages": []}\n', r"^data.jsonl:1: rows of text need a tokenizer"),
        ("[" * 100_000, r"^data.jsonl\[0\]: an array must end with a bracket, got the end of"),
        ("[" * 100_000 + "]" * 100_000, r"^data.jsonl\[0\]: must be nested less deeply"),
    ],
)
def test_a_wrong_file_is_an_error_with_its_line(tmp_path, text, message):
    path = tmp_path / "data.jsonl"
    path.write_text(text, "utf-8")
    with pytest.raises(ValueError, match=message):
        read_samples(path)


def test_bytes_that_are_no_text_are_an_error_with_their_line(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'{"input_ids": [1]}\n{"prompt": "\xff"}\n')
    with pytest.raises(ValueError, match=r"^data.jsonl:2: must be UTF-8"):
        read_samples(path)


def test_a_failing_template_names_file_and_line(tmp_path, tokenizer, templates):
    talk = [TALK[1], {"role": "tool", "content": "x"}]
    with pytest.raises(
        ValueError, match=r"^data.jsonl:1: the chat template failed.*answers a call"
    ):
        read_samples(
            write(tmp_path, {"messages": talk}), tokenizer=tokenizer, chat_template=templates.strict
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"expand": "steps"}, "expand must be 'whole' or 'per_step', got 'steps'"),
        ({"unrendered": "drop"}, "unrendered must be 'refuse' or 'count', got 'drop'"),
        ({"select": {"kind": "x"}}, r"data.jsonl:1: field 'kind' is needed to select rows"),
        ({"select": {"input_ids": "x"}}, "got none of 1 rows selected by {'input_ids': 'x'}"),
    ],
)
def test_a_wrong_argument_is_named(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        read_samples(write(tmp_path, {"input_ids": [1]}), **arguments)


def test_a_file_of_tools_must_be_a_list(tmp_path, tokenizer):
    (tmp_path / "schemas.json").write_text('{"name": "f"}', "utf-8")
    with pytest.raises(ValueError, match=r"schemas.json: must be a JSON list of tool schemas"):
        read_samples(
            write(tmp_path, {"messages": TALK}),
            tokenizer=tokenizer,
            tools=tmp_path / "schemas.json",
        )


@pytest.mark.parametrize(
    ("file", "expand", "sequences", "trajectories"),
    [
        ("taubench-airline/trajectories.jsonl", "whole", 32, 1),
        ("taubench-airline/trajectories.jsonl", "per_step", 404, 32),
        ("sweagent-demos/trajectories.jsonl", "per_step", 230, 22),
        ("tree-of-thought/samples.jsonl", "whole", 968, 1),
        ("openassistant-trees/trees.jsonl", "whole", 157, 1),
        ("openassistant-trees/trees.jsonl", "per_step", 172, 25),
        ("smollm2-rollouts/rollouts.jsonl", "whole", 100, 1),
    ],
)
def test_real_rows_are_read_whole_and_without_loss(
    shared_data, tokenizer, file, expand, sequences, trajectories
):
    samples, report = read_counted(shared_data / file, tokenizer=tokenizer, expand=expand)
    assert len(samples) == report.sequences == sequences
    assert len({sample.trajectory for sample in samples}) == trajectories
    assert report.calls_missing == report.tools_missing == 0
    if expand == "per_step":
        end = tokenizer.convert_tokens_to_ids("<|end|>")
        for sample in samples:
            first = int(sample.weights.argmax())
            assert sample.weights[first:].all()
            assert sample.tokens[-1] == end


@pytest.mark.parametrize("digits", [30, 5000])
@pytest.mark.parametrize("field", ["input_ids", "labels", "keys"])
def test_an_integer_of_any_length_is_refused_by_line_and_field(tmp_path, field, digits):
    row = json.dumps({"input_ids": [1, 2], field: [1, 2]}).replace("2]", "9" * digits + "]")
    path = tmp_path / "data.jsonl"
    path.write_text('{"input_ids": [1]}\n' + row)
    with pytest.raises(ValueError, match=r"^data\.jsonl:2: field '\w+\[1\]' must be "):
        read_samples(path)


LONE = "a\ud83d"


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ({"prompt": LONE, "completion": "b"}, "prompt"),
        ({"prompt": "a", "ids": [1], "group": LONE}, "group"),
        ({"messages": [{"role": "user", "content": LONE}]}, r"messages\[0\].content"),
        ({"messages": [], "tools": [{"function": {"name": LONE}}]}, r"tools\[0\].function.name"),
        ({"prompt": {"text": LONE, "role": "user", "replies": []}}, "prompt.text"),
    ],
)
def test_half_a_character_is_refused_by_line_and_field(tmp_path, tokenizer, row, field):
    with pytest.raises(ValueError, match=rf"^data\.jsonl:1: field '{field}' must be .*'\\ud83d'"):
        read_samples(write(tmp_path, row), tokenizer=tokenizer)


def test_half_a_character_in_a_field_that_is_not_read_does_no_harm(tmp_path):
    assert len(read_samples(write(tmp_path, {"input_ids": [1, 2], "text": LONE}))) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tokenizer": "demo"}, "tokenizer must be a tokenizer of transformers.* got str"),
        ({"select": "k=1"}, "select must be a dict .* got str 'k=1'"),
        ({"select": {"k": 1}}, r"select\['k'\] must be text.* got int 1"),
        ({"template_variables": [1]}, "template_variables must be a dict, got list"),
        ({"tools": 5}, "tools must be a list .* got int 5"),
        ({"tools": {"a": 1}}, "tools must be a list .* got dict"),
        ({"tools": ["a"]}, r"tools\[0\] must be a tool schema"),
        ({"chat_template": 5}, "chat_template must be Jinja text, got int 5"),
        ({"path": None}, "path must be the path of a file, got NoneType"),
    ],
)
def test_an_argument_of_another_type_is_named(tmp_path, arguments, message):
    path = write(tmp_path, {"input_ids": [1, 2]})
    with pytest.raises(TypeError, match=message):
        read_samples(**{"path": path, **arguments})


ASK = {"role": "user", "content": "q"}


def calling(call):
    return {"messages": [ASK, {"role": "assistant", "content": "", "tool_calls": [call]}]}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (calling({"name": "f", "function": 3}), r"tool_calls\[0\].function' must be a valid dict"),
        (calling({"function": {"arguments": ""}}), r"tool_calls\[0\].function.name' is required"),
        (calling({"name": "f", "arguments": "9" * 5000}), "arguments' must be JSON, got '999"),
        (calling({"name": "f", "arguments": "[" * 5000}), r"arguments' must be JSON, got '\[\[\["),
        (calling({"name": "f", "arguments": '{"a": "\\ud800"}'}), "arguments.a' must be text of"),
        (
            {"messages": [ASK], "tools": '[{"a": "\\ud800"}]'},
            r"tools\[0\].a' must be text of whole",
        ),
        ({"messages": [ASK], "tools": "[" * 5000}, "'tools' must be a list, or JSON text of one"),
        ({"messages": [ASK], "tools": [{"function": 3}]}, r"'tools\[0\]' must be a tool schema"),
        ({"messages": '["\\ud800"]'}, r"'messages\[0\]' must be text of whole characters"),
        ({"group": 1, "samples": []}, "field 'samples' must have at least one row, got none"),
    ],
)
def test_what_is_wrong_inside_a_field_is_told_by_its_place(
    tmp_path, tokenizer, templates, row, message
):
    path = write(tmp_path, {"input_ids": [1]}, row)
    reading = {"tokenizer": tokenizer, "chat_template": templates.strict}
    with pytest.raises(ValueError, match=f"^data.jsonl:2: .*{message}"):
        read_samples(path, **reading)
    samples, report = read_counted(path, skip_bad_rows=True, **reading)
    assert (len(samples), report.rows_read, len(report.skipped)) == (1, 1, 1)


def test_a_row_is_told_and_skipped_however_deeply_it_is_nested(tmp_path):
    path = tmp_path / "data.jsonl"
    metrics = '{"prompt_token_ids": [1], "completion_token_ids": [2]}'
    told = set()
    # Which of JSON, checks and templates gives up first depends on Python.
    for depth in range(700, 1000):
        deep = "[" * depth + "]" * depth
        path.write_text(
            '{"schema_version": "ATIF-v1.7", "steps": [{"source": "agent", "message": "a", '
            f'"metrics": {metrics}}}], "agent": {{"x": {deep}}}}}\n{{"input_ids": [1]}}\n'
        )
        _, report = read_counted(path, skip_bad_rows=True)
        assert report.rows_read + len(report.skipped) == 2
        told |= set(report.skipped)
    assert told
    assert all(wrong.startswith("data.jsonl:1: must be nested less deeply") for wrong in told)


def test_whatever_gives_up_on_a_deep_row_the_row_is_told(tmp_path, monkeypatch):
    def give_up(*_):
        raise RecursionError("maximum recursion depth exceeded")

    monkeypatch.setattr(reader, "parse_row", give_up)
    with pytest.raises(ValueError, match=r"^data.jsonl:1: must be nested less deeply$"):
        read_samples(write(tmp_path, {"input_ids": [1]}))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 5000, r"tools.json: must be nested less deeply"),
        ("[" + "9" * 5000 + "]", "tools.json: must be a JSON list of tool schemas"),
        ('[{}, {"function": [1]}]', r"tools.json\[1\]: must be a tool schema, whose 'function'"),
        ('[{"function": {"a": "\\ud800"}}]', r"tools.json\[0\]: field 'function.a' must be text"),
    ],
)
def test_schemas_beside_the_file_are_checked(tmp_path, tokenizer, text, message):
    (tmp_path / "tools.json").write_text(text)
    path = write(tmp_path, {"messages": TALK})
    with pytest.raises(ValueError, match=message):
        read_samples(path, tokenizer=tokenizer)
    if "tool schema, whose" in message:
        with pytest.raises(ValueError, match=r"^tools\[1\]: must be a tool schema"):
            read_samples(path, tokenizer=tokenizer, tools=json.loads(text))


def test_a_schema_nested_without_end_is_told(tmp_path):
    schema: dict[str, Any] = {}
    schema["a"] = [schema]
    with pytest.raises(ValueError, match=r"^tools\[0\]: must be nested less deeply"):
        read_samples(write(tmp_path, {"input_ids": [1]}), tools=[schema])
