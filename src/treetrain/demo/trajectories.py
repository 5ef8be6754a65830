"""Rows of the built-in example: every trial of every task as a conversation with tools.

The rows are ordinary `messages` rows, as a user's own file would hold them; nothing downstream
knows that they were made up.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from random import Random

from treetrain.demo.agent import Act, Routine
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
        chance = Random(f"greenhouse/{seed}/{number}")
        greenhouse = draw_greenhouse(chance)
        task = KINDS[number % len(KINDS)](greenhouse, chance)
        for trial in range(trials):
            own = Random(f"greenhouse/{seed}/{number}/{trial}")
            group = f"task-{number:02d}"
            messages: list[Json] = [
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": task.request},
            ]
            _play(copy.deepcopy(greenhouse), task.routine(own), messages)
            rows.append(
                {
                    "group": group,
                    "trajectory_id": f"{group}/trial-{trial}",
                    "tools": list(TOOLS),
                    "messages": messages,
                }
            )
    return rows


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
        messages.append(_message(act, len(messages)))
        if act.tool is None:
            return
        answer = greenhouse.call(act.tool, act.arguments)
        messages.append(
            {
                "role": "tool",
                "tool_call_id": f"call-{len(messages) - 1}",
                "name": act.tool,
                "content": json.dumps(answer),
            }
        )
        act = routine.send(answer)


def _message(act: Act, place: int) -> Json:
    message: Json = {
        "role": "assistant",
        "reasoning_content": act.thinking,
        "content": act.text,
    }
    if act.tool is not None:
        call = {"name": act.tool, "arguments": json.dumps(act.arguments)}
        message["tool_calls"] = [{"id": f"call-{place}", "type": "function", "function": call}]
    return message
