from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from treetrain.demo.trajectories import make_rows, write_rows


def visible(row: dict) -> list[str]:
    """What later steps see of each message: everything but the thinking."""
    return [
        json.dumps({k: v for k, v in message.items() if k != "reasoning_content"})
        for message in row["messages"]
    ]


def test_same_seed_gives_the_same_rows_in_another_process() -> None:
    code = (
        "import json; from treetrain.demo.trajectories import make_rows;"
        "print(json.dumps(make_rows(tasks=5, trials=3, seed=7)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env={"PYTHONHASHSEED": "1"},
    )
    assert json.loads(done.stdout) == make_rows(tasks=5, trials=3, seed=7)


def test_another_seed_gives_other_rows() -> None:
    assert make_rows(tasks=4, trials=2, seed=0) != make_rows(tasks=4, trials=2, seed=1)


def test_more_tasks_leave_the_first_ones_as_they_were() -> None:
    assert make_rows(tasks=6, trials=2, seed=0)[:8] == make_rows(tasks=4, trials=2, seed=0)


def test_rows_follow_the_conversation_format() -> None:
    for row in make_rows(tasks=8, trials=4, seed=3):
        roles = [message["role"] for message in row["messages"]]
        assert roles[:2] == ["system", "user"]
        assert roles[-1] == "assistant"
        assert all(a != b for a, b in pairwise(roles))
        names = {tool["function"]["name"] for tool in row["tools"]}
        for before, after in pairwise(row["messages"]):
            if before["role"] == "assistant":
                (call,) = before["tool_calls"]
                assert call["function"]["name"] in names
                assert isinstance(json.loads(call["function"]["arguments"]), dict)
                assert after["tool_call_id"] == call["id"]
                assert isinstance(json.loads(after["content"]), dict)
                assert before["reasoning_content"]
        assert "tool_calls" not in row["messages"][-1]
        assert row["messages"][-1]["content"]


def test_trials_of_a_task_share_steps_and_part_at_different_ones() -> None:
    rows = make_rows(tasks=12, trials=4, seed=0)
    partings = set()
    for first in range(0, len(rows), 4):
        trials = [visible(row) for row in rows[first : first + 4]]
        for other in trials[1:]:
            same = 0
            while same < min(len(other), len(trials[0])) and other[same] == trials[0][same]:
                same += 1
            partings.add(same)
    assert min(partings) == 2  # some at the first step, right after the question
    assert len(partings) >= 4


def test_thinking_differs_where_the_act_is_the_same() -> None:
    rows = make_rows(tasks=12, trials=4, seed=0)
    pairs = 0
    for first in range(0, len(rows), 4):
        one, two = rows[first], rows[first + 1]
        a, b = one["messages"][2], two["messages"][2]
        pairs += (
            visible(one)[2] == visible(two)[2] and a["reasoning_content"] != b["reasoning_content"]
        )
    assert pairs >= 3


@pytest.mark.parametrize("name", ["tasks", "trials"])
def test_no_tasks_or_trials_is_an_error(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        make_rows(**({"tasks": 1, "trials": 1, "seed": 0} | {name: 0}))


def test_written_rows_come_back(tmp_path: Path) -> None:
    rows = make_rows(tasks=2, trials=2, seed=0)
    write_rows(rows, tmp_path / "rows.jsonl")
    lines = (tmp_path / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == rows
