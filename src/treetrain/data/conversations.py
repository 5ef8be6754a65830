"""Conversations out of rows: messages as templates take them, threads of message trees.

`conversation` holds the type; `rendered` and `recorded` make sequences of them.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any, cast

from treetrain.data.agent_rows import AgentRow, read_agent_messages
from treetrain.data.atif import AtifConversation
from treetrain.data.chat import ASSISTANT, Chat, Tools
from treetrain.data.conversation import Conversation, Expand
from treetrain.data.fields import ChatRow, Json, field_error, load_field
from treetrain.data.formats import CompletionRow, ConversationRow, TreeRow
from treetrain.data.sharegpt import ShareGptRow, read_turns

ROLES_OF_TREES = {"prompter": "user"}


def read_conversations(
    chat: Chat,
    row: ConversationRow | CompletionRow | ShareGptRow | AgentRow,
    fields: Json,
    *,
    tools: Tools | None,
    source: str,
) -> list[Conversation]:
    """Makes the conversations of one row of messages, one for all kinds but some of SWE-agent.

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
        The conversations; of a prompt with a completion only the completion is trained.

    Raises:
        ValueError: there is no message, or a call's arguments are no JSON.
    """  # noqa: DOC503 (field_error makes the errors)
    group = row.group
    if isinstance(row, AgentRow):
        group = row.instance_id if group is None else group
        found = [
            _make(chat, row, _placed(messages), trained, tools=tools, group=group, source=source)
            for messages, trained in read_agent_messages(row, source)
        ]
        # Steps of one run are one trajectory, however they are read.
        return [replace(one, named=one.named or len(found) > 1) for one in found]
    if isinstance(row, ShareGptRow):
        turns, trained = read_turns(row, fields, source)
        if not turns:
            raise field_error(source, "conversations", "must have at least one message, got none")
        return [_make(chat, row, _placed(turns), trained, tools=tools, group=group, source=source)]
    names = ("messages",) if isinstance(row, ConversationRow) else ("prompt", "completion")
    messages: list[tuple[Json, str]] = []
    first = 0
    for name in names:
        first = len(messages)
        messages += [(message, f"{name}[{index}]") for index, message in enumerate(fields[name])]
    if not messages:
        raise field_error(source, names[-1], "must have at least one message, got none")
    trained = [i for i, (one, _) in enumerate(messages) if one["role"] == ASSISTANT and i >= first]
    return [_make(chat, row, messages, trained, tools=tools, group=group, source=source)]


def read_agent(
    chat: Chat | None,
    agent: AtifConversation,
    top: ChatRow,
    *,
    tools: Tools | None,
    source: str,
) -> Conversation:
    """Makes the conversation of one agent of an ATIF trajectory.

    Args:
        chat: the template, or None where everything that is trained was recorded.
        agent: the agent's messages.
        top: the row, which names group and advantage of all of its agents.
        tools: schemas used when the agent has none.
        source: file and line.

    Returns:
        The conversation, a trajectory of its own.

    Raises:
        ValueError: there is no message.
    """  # noqa: DOC503 (field_error makes the errors)
    place = f"{source}: {agent.place}" if agent.place else source
    if not agent.messages:
        raise field_error(place, "steps", "must have at least one step, got none")
    own = agent.row.agent.tool_definitions
    named = agent.row.trajectory_id
    named = agent.row.session_id if named is None and not agent.place else named
    return Conversation(
        messages=[
            one if chat is None else _normalised(chat, one, f"messages[{index}]", place)
            for index, one in enumerate(agent.messages)
        ],
        trained=agent.trained,
        tools=own if own is not None else tools,
        group=top.group,
        trajectory=place if named is None else named,
        named=True,
        advantage=top.advantage,
        reward=top.reward,
        source=place,
        recorded=agent.recorded,
    )


def _placed(messages: list[Json]) -> list[tuple[Json, str]]:
    return [(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _make(
    chat: Chat,
    row: ChatRow,
    messages: list[tuple[Json, str]],
    trained: list[int],
    *,
    tools: Tools | None,
    group: Hashable | None,
    source: str,
) -> Conversation:
    return Conversation(
        messages=[_normalised(chat, message, place, source) for message, place in messages],
        trained=trained,
        tools=row.tools if row.tools is not None else tools,
        group=group,
        trajectory=source if row.trajectory_id is None else row.trajectory_id,
        named=row.trajectory_id is not None,
        advantage=row.advantage,
        reward=row.reward,
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
            reward=None,
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
    parsed = load_field(arguments or "{}", source, f"{place}.arguments", expected="JSON")
    return {**call, "arguments": parsed}
