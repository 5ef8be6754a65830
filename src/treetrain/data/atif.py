"""Trajectories in the Agent Trajectory Interchange Format, ATIF 1.x, made into messages.

What a model call recorded of its token ids is kept beside the messages: it wins over text that is
rendered again. Embedded sub-agents are trajectories of their own.

Source: Harbor's RFC 0001 (trajectory format) and its change log up to ATIF-v1.7.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from treetrain.data.chat import ASSISTANT
from treetrain.data.fields import ChatRow, Integer, Json, Part, Schema, field_error


class _Reference(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")
    session_id: str | None = None
    trajectory_id: str | None = None


class _Result(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")
    source_call_id: str | None = None
    content: str | list[Part] | None = None
    subagent_trajectory_ref: list[_Reference] | None = None


class _Observation(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")
    results: list[_Result]


class _Call(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")
    tool_call_id: str
    function_name: str
    arguments: Json


class _Metrics(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")
    prompt_token_ids: list[Integer] | None = None
    completion_token_ids: list[Integer] | None = None
    logprobs: list[float] | None = None


class _Step(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")
    source: Literal["system", "user", "agent"]
    message: str | list[Part]
    reasoning_content: str | None = None
    tool_calls: list[_Call] | None = None
    observation: _Observation | None = None
    metrics: _Metrics | None = None
    is_copied_context: bool | None = None
    llm_call_count: Integer | None = None


class _Agent(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")
    tool_definitions: list[Schema] | None = None


class AtifRow(ChatRow):
    """One trajectory document."""

    schema_version: str
    steps: list[_Step]
    agent: _Agent = Field(default_factory=_Agent)
    session_id: str | None = None
    subagent_trajectories: list[AtifRow] | None = None
    continued_trajectory_ref: str | None = None

    @field_validator("schema_version")
    @classmethod
    def _first_version(cls, value: str) -> str:
        if not re.fullmatch(r"ATIF-v1\.\d+", value):
            raise ValueError("must be ATIF-v1.x")
        return value


@dataclass(frozen=True)
class Recorded:
    """Token ids that were recorded when a message was sampled.

    Attributes:
        context: ids that were sent to the model, or None where they were not recorded.
        sampled: ids that it gave.
        logprobs: their log-probabilities, nats, or None.
    """

    context: list[int] | None
    sampled: list[int]
    logprobs: list[float] | None


@dataclass
class AtifConversation:
    """One agent's part of a trajectory.

    Attributes:
        row: its document.
        place: where it stands in the row: empty, or "subagent_trajectories[0]".
        messages: its messages.
        trained: indices of those that a model sampled in this trajectory.
        recorded: what was recorded of them.
        elsewhere: sub-agents it refers to that its document does not hold, and continuations.
        not_sampled: agent messages that are copied context, or came without a call of a model.
        plain_observations: results that answer no tool call, and stand as messages of the user.
    """

    row: AtifRow
    place: str
    messages: list[Json] = field(default_factory=list[Json])
    trained: list[int] = field(default_factory=list[int])
    recorded: dict[int, Recorded] = field(default_factory=dict[int, Recorded])
    elsewhere: int = 0
    not_sampled: int = 0
    plain_observations: int = 0


def read_agents(row: AtifRow, source: str, place: str = "") -> Iterator[AtifConversation]:
    """Makes the conversations of a trajectory: the agent's own, then those of its sub-agents.

    Args:
        row: the checked document.
        source: file and line.
        place: where the document stands in the row.

    Yields:
        The conversations, depth-first.

    Raises:
        ValueError: recorded log-probabilities and ids differ in number, or ids are given without
            what was sampled after them.
    """  # noqa: DOC502 (_add_step raises)
    found = AtifConversation(row, place)
    inner = row.subagent_trajectories or []
    held = {one.trajectory_id for one in inner} | {one.session_id for one in inner}
    found.elsewhere = int(row.continued_trajectory_ref is not None)
    for index, step in enumerate(row.steps):
        _add_step(found, step, f"{place}{'.' if place else ''}steps[{index}]", source)
        for result in step.observation.results if step.observation else ():
            for one in result.subagent_trajectory_ref or ():
                known = one.trajectory_id in held or one.session_id in held
                found.elsewhere += not (known and (one.trajectory_id or one.session_id))
    yield found
    for index, one in enumerate(inner):
        below = f"{place}{'.' if place else ''}subagent_trajectories[{index}]"
        yield from read_agents(one, source, below)


def _add_step(found: AtifConversation, step: _Step, place: str, source: str) -> None:
    if step.source == "agent":
        message: Json = {"role": ASSISTANT, "content": _as_text(step.message)}
        if step.reasoning_content is not None:
            message["reasoning_content"] = step.reasoning_content
        if step.tool_calls:
            message["tool_calls"] = [
                {
                    "id": call.tool_call_id,
                    "type": "function",
                    "function": {"name": call.function_name, "arguments": call.arguments},
                }
                for call in step.tool_calls
            ]
        if step.is_copied_context or step.llm_call_count == 0:
            found.not_sampled += 1
        else:
            found.trained.append(len(found.messages))
            recorded = _read_recorded(step, place, source)
            if recorded is not None:
                found.recorded[len(found.messages)] = recorded
        found.messages.append(message)
    else:
        found.messages.append({"role": step.source, "content": _as_text(step.message)})
    names = {call.tool_call_id: call.function_name for call in step.tool_calls or ()}
    for result in step.observation.results if step.observation else ():
        if result.source_call_id is not None:
            answer: Json = {
                "role": "tool",
                "tool_call_id": result.source_call_id,
                "content": _as_text(result.content),
            }
            if result.source_call_id in names:
                answer["name"] = names[result.source_call_id]
            found.messages.append(answer)
        elif result.content is not None:
            found.plain_observations += 1
            found.messages.append({"role": "user", "content": _as_text(result.content)})


def _read_recorded(step: _Step, place: str, source: str) -> Recorded | None:
    metrics = step.metrics
    if metrics is None:
        return None
    sampled = metrics.completion_token_ids
    if sampled is None:
        if metrics.prompt_token_ids is not None:
            raise field_error(
                source,
                f"{place}.metrics.completion_token_ids",
                "is required where prompt_token_ids are recorded",
            )
        return None
    if metrics.logprobs is not None and len(metrics.logprobs) != len(sampled):
        raise field_error(
            source,
            f"{place}.metrics.logprobs",
            f"has {len(metrics.logprobs)} entries for {len(sampled)} completion_token_ids",
        )
    return Recorded(metrics.prompt_token_ids, sampled, metrics.logprobs)


def _as_text(content: str | list[Part] | None) -> str:
    if content is None:
        return ""
    return content if isinstance(content, str) else "".join(part.text for part in content)
