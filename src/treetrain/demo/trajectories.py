"""Rows of the built-in example: every trial of every task as a conversation with tools.

The rows are ordinary `messages` rows, as a user's own file would hold them; nothing downstream
knows that they were made up.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from random import Random

from treetrain.demo.agent import Act, Routine, Task
from treetrain.demo.greenhouse import TOOLS, Greenhouse, Json, draw_greenhouse
from treetrain.demo.tasks import KINDS

SYSTEM = (
    "You look after a greenhouse with eight benches. Use the tools to find out what is so before "
    "you change anything. Water little and read the sensor again. Say at the end, in one or two "
    "sentences, what you did. Numbers come from the tools, never from memory."
)


def make_rows(*, tasks: int, trials: int, seed: int) -> list[Json]:
    """Makes the data set.

    Args:
        tasks: number of tasks, each of which is one group.
        trials: trials of each task.
        seed: the same seed gives the same rows on every machine and Python release.

    Returns:
        One row per trial, tasks one after the other: `group`, `trajectory_id`, `tools`, `messages`.

    Raises:
        ValueError: `tasks` or `trials` is not positive.
    """
    for name, value in (("tasks", tasks), ("trials", trials)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    rows: list[Json] = []
    for number in range(tasks):
        own = f"greenhouse/{seed}/{number}"
        chance = Random(own)
        greenhouse = draw_greenhouse(chance)
        task = KINDS[number % len(KINDS)](greenhouse, chance)
        rows += play_trials(greenhouse, task, trials=trials, seed=own, group=f"task-{number:02d}")
    return rows


def play_trials(
    greenhouse: Greenhouse,
    task: Task,
    *,
    trials: int,
    seed: str,
    group: str,
    tools: Sequence[Json] = TOOLS,
) -> list[Json]:
    """Plays a task several times, each trial by its own source of chance.

    Args:
        greenhouse: the state that every trial begins in.
        task: the task.
        trials: number of trials.
        seed: seed of the trials.
        group: name of the task.
        tools: schemas of the tools that the agent is told of.

    Returns:
        One row per trial.
    """
    rows: list[Json] = []
    for trial in range(trials):
        messages = open_conversation(task)
        _play(copy.deepcopy(greenhouse), task.routine(Random(f"{seed}/{trial}")), messages)
        rows.append(
            {
                "group": group,
                "trajectory_id": f"{group}/trial-{trial}",
                "tools": list(tools),
                "messages": messages,
            }
        )
    return rows


def open_conversation(task: Task) -> list[Json]:
    """Says what the agent reads before its first step.

    Args:
        task: the task.

    Returns:
        The system's message and the person's.
    """
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": task.request}]


def make_message(act: Act, place: int) -> Json:
    """Puts a step into the message that stands for it in a row.

    Args:
        act: the step.
        place: index of the message in the conversation; numbers its call.

    Returns:
        The assistant's message.
    """
    message: Json = {
        "role": "assistant",
        "reasoning_content": act.thinking,
        "content": act.text,
    }
    if act.tool is not None:
        call = {"name": act.tool, "arguments": json.dumps(act.arguments)}
        message["tool_calls"] = [{"id": f"call-{place}", "type": "function", "function": call}]
    return message


def make_answer(tool: str, answer: Json, place: int) -> Json:
    """Puts a tool's answer into the message that stands for it in a row.

    Args:
        tool: name of the tool.
        answer: what it answered.
        place: index of the message in the conversation; the call is the one before it.

    Returns:
        The tool's message.
    """
    return {
        "role": "tool",
        "tool_call_id": f"call-{place - 1}",
        "name": tool,
        "content": json.dumps(answer),
    }


def write_rows(rows: list[Json], path: Path) -> None:
    """Writes rows as JSON lines.

    Args:
        rows: what `make_rows` gives.
        path: the file; an existing one is replaced.
    """
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8")


def _play(greenhouse: Greenhouse, routine: Routine, messages: list[Json]) -> None:
    act = next(routine, None)
    while act is not None:
        messages.append(make_message(act, len(messages)))
        if act.tool is None:
            return
        answer = greenhouse.call(act.tool, act.arguments)
        messages.append(make_answer(act.tool, answer, len(messages)))
        act = routine.send(answer)
