"""ShareGPT rows: `conversations` of turns `{from, value}`, made into messages.

Source: the data README of LLaMA-Factory and axolotl's page on conversations.
"""

from __future__ import annotations

from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict

from treetrain.data.chat import ASSISTANT
from treetrain.data.fields import ChatRow, Json, field_error, load_field

#: Who speaks, by every name that is in use, and the role that this is.
SPEAKERS = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": ASSISTANT,
    "chatgpt": ASSISTANT,
    "assistant": ASSISTANT,
    "model": ASSISTANT,
    "function_call": ASSISTANT,
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
}


class _Turn(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", populate_by_name=True)
    value: str
    weight: Literal[0, 1] | bool | None = None


class ShareGptRow(ChatRow):
    """One conversation; `weight` 0 of a turn leaves it untrained."""

    conversations: list[_Turn]
    system: str | None = None


def read_turns(row: ShareGptRow, fields: Json, source: str) -> tuple[list[Json], list[int]]:
    """Makes messages of the turns.

    Args:
        row: the checked row.
        fields: the JSON object behind it.
        source: file and line.

    Returns:
        The messages, a system message of the row's own field first, and the indices of those that
        are trained.

    Raises:
        ValueError: a speaker is unknown, or a function call is no JSON.
    """  # noqa: DOC503 (field_error makes the errors)
    messages: list[Json] = [{"role": "system", "content": row.system}] if row.system else []
    trained: list[int] = []
    for index, (turn, written) in enumerate(
        zip(row.conversations, fields["conversations"], strict=True)
    ):
        place = f"conversations[{index}]"
        if "from" not in written:
            raise field_error(source, f"{place}.from", "is required")
        speaker = written["from"]
        if not isinstance(speaker, str) or speaker not in SPEAKERS:
            raise field_error(
                source,
                f"{place}.from",
                f"must be one of {', '.join(SPEAKERS)}, got {speaker!r:.60}",
            )
        role = SPEAKERS[speaker]
        if role == ASSISTANT and turn.weight in (None, 1):
            trained.append(len(messages))
        message: Json = {"role": role, "content": turn.value}
        if speaker == "function_call":
            calls = _read_calls(turn.value, f"{place}.value", source)
            message = {"role": role, "content": "", "tool_calls": calls}
        messages.append(message)
    return messages, trained


def _read_calls(text: str, place: str, source: str) -> list[Json]:
    value = load_field(text, source, place, expected="the JSON of a function call")
    calls = cast(list[Any], value) if isinstance(value, list) else [value]
    found: list[Json] = []
    for call in calls:
        if not isinstance(call, dict) or not isinstance(cast(Json, call).get("name"), str):
            raise field_error(source, place, f"must name a function, got {text[:60]!r}")
        function = cast(Json, call)
        arguments = function.get("arguments", function.get("parameters", {}))
        found.append(
            {
                "type": "function",
                "function": {"name": function["name"], "arguments": arguments},
            }
        )
    return found
