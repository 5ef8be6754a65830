"""Trajectories of SWE-agent: a `.traj` file, or a row of a data set of them, made into messages.

`history` is the whole conversation of the agent. Where there is none, `trajectory` is read: a list
of messages, or of steps that hold the model's input (`query`) and its output (`response`).

Source: SWE-agent's page on output files.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from treetrain.data.chat import ASSISTANT
from treetrain.data.fields import ChatRow, Json, Message, ToolCall, field_error

#: Roles that data sets of trajectories write otherwise.
ROLES = {"ai": ASSISTANT}
#: What belongs to a message; the rest of an entry is SWE-agent's own bookkeeping.
KEPT = ("role", "content", "tool_calls", "tool_call_id", "name", "reasoning_content")


class _Entry(Message):
    is_demo: bool | None = None
    tool_call_ids: list[str] | None = None


class _Step(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")
    role: str | None = None
    content: str | None = None
    text: str | None = None
    system_prompt: str | None = None
    tool_calls: list[ToolCall] | None = None
    query: list[Message] | None = None
    response: str | None = None


class AgentRow(ChatRow):
    """What SWE-agent saves of one run."""

    history: list[_Entry] | None = None
    trajectory: list[_Step] | None = None
    instance_id: str | None = None


def read_agent_messages(row: AgentRow, source: str) -> list[tuple[list[Json], list[int]]]:
    """Makes conversations of a run.

    Args:
        row: the checked row.
        source: file and line.

    Returns:
        For each conversation its messages, and the indices of those that are trained:
        demonstrations are not. One conversation, or one for each step that kept its own input.

    Raises:
        ValueError: neither `history` nor `trajectory` has messages.
    """  # noqa: DOC503 (field_error makes the errors)
    if row.history:
        entries = [entry.model_dump(exclude_none=True) for entry in row.history]
        messages = [_read_entry(entry) for entry in entries]
        trained = [
            index
            for index, entry in enumerate(entries)
            if messages[index]["role"] == ASSISTANT and not entry.get("is_demo")
        ]
        return [(messages, trained)]
    steps = row.trajectory or []
    if not steps:
        raise field_error(source, "history", "must have at least one message, got none")
    if all(step.role is not None for step in steps):
        messages = [_read_entry(_as_entry(step)) for step in steps]
        return [(messages, [i for i, one in enumerate(messages) if one["role"] == ASSISTANT])]
    found: list[tuple[list[Json], list[int]]] = []
    for index, step in enumerate(steps):
        if not step.query or step.response is None:
            raise field_error(
                source,
                f"trajectory[{index}]",
                "must have a role, or the model's input (query) and output (response), where a "
                "row has no history",
            )
        messages = [_read_entry(entry.model_dump(exclude_none=True)) for entry in step.query]
        messages.append({"role": ASSISTANT, "content": step.response})
        found.append((messages, [len(messages) - 1]))
    return found


def _as_entry(step: _Step) -> Json:
    content = next(
        (one for one in (step.content, step.text, step.system_prompt) if one is not None), ""
    )
    calls = (
        {} if step.tool_calls is None else {"tool_calls": [c.model_dump() for c in step.tool_calls]}
    )
    return {"role": step.role, "content": content, **calls}


def _read_entry(entry: dict[str, Any]) -> Json:
    message: Json = {name: entry[name] for name in KEPT if name in entry}
    message["role"] = ROLES.get(message["role"], message["role"])
    if entry.get("tool_call_ids"):
        message.setdefault("tool_call_id", entry["tool_call_ids"][0])
    return message
