"""Rows of every kind, altered anywhere: a message with the file, or an account of every row."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from treetrain.data.report import ReadReport
from treetrain.data.rows import iter_samples

ASKED = {"role": "user", "content": "q"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
TALK = [
    ASKED,
    {"role": "assistant", "content": "a", "reasoning_content": "r", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c", "content": "o"},
    {"role": "assistant", "content": [{"type": "text", "text": "b"}]},
]
METRICS = {"prompt_token_ids": [1], "completion_token_ids": [2, 3], "logprobs": [-1.0, -2]}
AGENT = {
    "source": "agent",
    "message": "a",
    "tool_calls": [{"tool_call_id": "c", "function_name": "f", "arguments": {"a": 1}}],
    "observation": {"results": [{"source_call_id": "c", "content": "o"}, {"content": "p"}]},
    "metrics": METRICS,
}
INNER = {
    "schema_version": "ATIF-v1.7",
    "trajectory_id": "s",
    "steps": [{"source": "user", "message": "q"}, {"source": "agent", "message": "a"}],
}
ROWS: list[dict[str, Any]] = [
    {"input_ids": [1, 2, 3], "labels": [-100, 2, 3], "attention_mask": [1, 1, 1], "reward": 1.0},
    {"prompt": "p", "completion": "c", "group": "g", "advantage": 0.5},
    {"prompt": "p", "ids": [1, 2], "text": "t"},
    {"prompt": [ASKED], "completion": TALK[1:], "tools": [{"name": "f"}]},
    {"messages": TALK, "trajectory_id": "t"},
    {"group": "g", "samples": [{"input_ids": [1, 2]}, {"messages": TALK}]},
    {"prompt": {"text": "q", "role": "prompter",
                "replies": [{"text": "a", "role": "assistant", "replies": []}]}},
    {"prompts": [0, 1], "responses": [2, 3], "attention_mask": [0, 1, 1, 1], "uid": "u",
     "response_mask": [1, 0], "rollout_log_probs": [-1, 0], "token_level_scores": [0, 1.5]},
    {"prompt_token_ids": [[1], [1, 2]], "response_ids": [[3], [4, 5]], "loss_masks": [[1], [1, 0]],
     "rewards": [1.0, 0], "trajectory_ids": [{"instance_id": "i", "repetition_id": 0}] * 2},
    {"prompt_ids": [1], "completion_ids": [2], "completion_mask": [1], "advantages": 0.5},
    {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"},
                       {"from": "function_call", "value": '{"name": "f", "arguments": {}}'}],
     "system": "s", "tools": '[{"name": "f"}]'},
    {"history": [ASKED, {"role": "assistant", "content": "a", "is_demo": False}], "info": {}},
    {"trajectory": [{"query": [ASKED], "response": "a"}], "instance_id": "i"},
    {"schema_version": "ATIF-v1.7", "session_id": "s", "agent": {"name": "a", "version": "1"},
     "steps": [{"source": "user", "message": "q"}, AGENT], "subagent_trajectories": [INNER]},
]  # fmt: skip

STRAY = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 3),
    st.sampled_from([2**31, 2**63, -(2**70), 1e308, float("nan"), float("inf"), 0.5]),
    st.text(alphabet='a"\\\ud800é{', max_size=3),
    st.sampled_from([[], {}, [[]], [1], [[1], 2], {"a": 1}, [{}], "assistant", "user"]),
)


def places_in(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [place] if place else []
    inner = value.items() if isinstance(value, dict) else ()
    inner = enumerate(value) if isinstance(value, list) else inner
    for key, below in inner:
        found += places_in(below, (*place, key))
    return found


@st.composite
def altered(draw: st.DrawFn) -> dict[str, Any]:
    row = copy.deepcopy(draw(st.sampled_from(ROWS)))
    for _ in range(draw(st.integers(0, 2))):
        places = places_in(row)
        if not places:
            break
        *above, last = draw(st.sampled_from(places))
        holder: Any = row
        for key in above:
            holder = holder[key]
        if draw(st.booleans()):
            holder[last] = copy.deepcopy(draw(STRAY))
        else:
            del holder[last]
    return row


def read(path: Path, tokenizer: Any, expand: Any = "whole", *, skip: bool) -> ReadReport:
    """Reads a file: a message names it, or every row is accounted for."""
    report = ReadReport(str(path))
    samples = iter_samples(
        path,
        report,
        tokenizer=tokenizer,
        expand=expand,
        unrendered="count",
        skip_bad_rows=skip,
    )
    told, made = None, 0
    try:
        made = len(list(samples))
    except (ValueError, TypeError) as error:
        told = str(error)
    assert told is None or told.startswith((path.name, str(path)))
    assert all(wrong.startswith(path.name) for wrong in report.skipped)
    if told is None:
        assert report.sequences == made > 0
        assert sum(report.kinds.values()) >= report.rows_read
    return report


SLOW_FIXTURES = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@SLOW_FIXTURES
@given(st.lists(altered(), min_size=1, max_size=3), st.sampled_from(["whole", "per_step"]))
def test_altered_rows_are_told_by_file_or_accounted_for(tmp_path, tokenizer, rows, expand):
    for name, text in (
        ("data.jsonl", "".join(json.dumps(row) + "\n" for row in rows)),
        ("data.json", json.dumps(rows, indent=1)),
    ):
        path = tmp_path / name
        path.write_text(text)
        read(path, tokenizer, expand, skip=False)
        # No row of these is broken as text, so that all are counted.
        assert read(path, tokenizer, expand, skip=True).rows == len(rows)


@SLOW_FIXTURES
@given(
    st.sampled_from(ROWS),
    st.lists(st.tuples(st.integers(0, 2000), st.binary(max_size=2)), min_size=1, max_size=3),
)
def test_altered_text_is_told_by_file_or_accounted_for(tmp_path, tokenizer, row, changes):
    for name, text in (
        ("data.jsonl", json.dumps(row) + "\n" + json.dumps(ROWS[0]) + "\n"),
        ("data.json", json.dumps([row, ROWS[0]])),
    ):
        path = tmp_path / name
        data = bytearray(text.encode())
        for place, new in changes:
            place %= len(data)
            data[place : place + 1] = new
        path.write_bytes(bytes(data))
        for skip in (False, True):
            read(path, tokenizer, skip=skip)


def test_every_kind_of_row_is_read_as_it_stands(tmp_path, tokenizer):
    for row in ROWS:
        path = tmp_path / "data.jsonl"
        path.write_text(json.dumps(row))
        assert list(iter_samples(path, tokenizer=tokenizer, unrendered="count"))
