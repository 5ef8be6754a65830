"""Conversations out of rows: messages as templates take them, threads of message trees.

`expand` renders and encodes them.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from treetrain.data.chat import ASSISTANT, Chat, Tools
from treetrain.data.formats import CompletionRow, ConversationRow, Json, TreeRow, field_error

Expand = Literal["whole", "per_step"]

ROLES_OF_TREES = {"prompter": "user"}


@dataclass(frozen=True)
class Conversation:
    """Messages with what is trained in them, ready to be rendered.

    Attributes:
        messages: normalised messages: content is text, arguments are as the template takes them.
        trained: indices of the assistant messages that are trained.
        tools: schemas of the tools, or None.
        group: name of the tree.
        trajectory: name of the conversation.
        named: whether the row itself named the trajectory.
        advantage: the conversation's advantage, or None.
        source: file and line.
    """

    messages: Sequence[Json]
    trained: Sequence[int]
    tools: Tools | None
    group: Hashable | None
    trajectory: Hashable
    named: bool
    advantage: float | None
    source: str


def read_conversation(
    chat: Chat,
    row: ConversationRow | CompletionRow,
    fields: Json,
    *,
    tools: Tools | None,
    source: str,
) -> Conversation:
    """Makes the conversation of one row.

    Content of several text parts becomes one text, missing content the empty text. A tool call's
    arguments given as JSON text stay as they are where the template writes text unchanged, and are
    parsed where it expects an object.

    Args:
        chat: the template.
        row: the checked row.
        fields: the JSON object behind it.
        tools: schemas used when the row has none.
        source: file and line.

    Returns:
        The conversation; of a prompt with a completion only the completion is trained.

    Raises:
        ValueError: there is no message, or a call's arguments are no JSON.
    """  # noqa: DOC503 (field_error makes the errors)
    names = ("messages",) if isinstance(row, ConversationRow) else ("prompt", "completion")
    messages: list[Json] = []
    first = 0
    for name in names:
        first = len(messages)
        for index, message in enumerate(fields[name]):
            messages.append(_normalised(chat, message, f"{name}[{index}]", source))
    if not messages:
        raise field_error(source, names[-1], "must have at least one message, got none")
    trained = [i for i, message in enumerate(messages) if message["role"] == ASSISTANT]
    return Conversation(
        messages=messages,
        trained=[i for i in trained if i >= first],
        tools=row.tools if row.tools is not None else tools,
        group=row.group,
        trajectory=source if row.trajectory_id is None else row.trajectory_id,
        named=row.trajectory_id is not None,
        advantage=row.advantage,
        source=source,
    )


def read_threads(row: TreeRow, *, expand: Expand, source: str) -> list[Conversation]:
    """Makes the conversations of a message tree.

    Args:
        row: the checked row.
        expand: `whole`: one conversation for each thread from the root to a leaf; `per_step`: one
            for each assistant message, trained in this message alone, because it was sampled once
            however many threads go through it.
        source: file and line.

    Returns:
        The conversations, depth-first in the order of the replies. The tree is their group.
    """
    group = row.message_tree_id if row.group is None else row.group
    threads: list[tuple[list[Json], list[int]]] = []
    stack: list[tuple[Any, list[Json]]] = [(row.prompt, [])]
    while stack:
        reply, above = stack.pop()
        role = ROLES_OF_TREES.get(reply.role, reply.role)
        messages = [*above, {"role": role, "content": reply.text}]
        if expand == "per_step" and role == ASSISTANT:
            threads.append((messages, [len(messages) - 1]))
        if expand == "whole" and not reply.replies:
            trained = [i for i, m in enumerate(messages) if m["role"] == ASSISTANT]
            threads.append((messages, trained))
        stack += [(child, messages) for child in reversed(reply.replies)]
    return [
        Conversation(
            messages=messages,
            trained=trained,
            tools=None,
            group=source if group is None else group,
            trajectory=source if row.trajectory_id is None else row.trajectory_id,
            named=row.trajectory_id is not None,
            advantage=row.advantage,
            source=source,
        )
        for messages, trained in threads
    ]


def _normalised(chat: Chat, message: Json, place: str, source: str) -> Json:
    kept = {name: value for name, value in message.items() if value is not None}
    content = kept.get("content", "")
    if isinstance(content, list):
        parts = cast(list[Json], content)
        content = "".join(part["text"] for part in parts)
    kept["content"] = content
    if "tool_calls" in kept:
        kept["tool_calls"] = [
            _normalised_call(chat, call, f"{place}.tool_calls[{index}]", source)
            for index, call in enumerate(kept["tool_calls"])
        ]
    return kept


def _normalised_call(chat: Chat, call: Json, place: str, source: str) -> Json:
    if "function" in call:
        inner = _normalised_call(chat, call["function"], f"{place}.function", source)
        return {**call, "function": inner}
    arguments = call.get("arguments")
    if not isinstance(arguments, str) or chat.takes_argument_text:
        return call
    try:
        parsed = json.loads(arguments or "{}")
    except json.JSONDecodeError as error:
        raise field_error(
            source, f"{place}.arguments", f"must be JSON, got {arguments[:60]!r}: {error}"
        ) from error
    return {**call, "arguments": parsed}
