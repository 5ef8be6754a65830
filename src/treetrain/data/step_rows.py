"""Rows of one step of a policy: a prompt and a response as ids, and what was recorded with them.

verl, SkyRL and TRL write the same things under other names. A row that holds a whole batch, a list
of prompts and a list of responses, is divided into its steps.

Source: verl's `DataProto` and agent-loop output, SkyRL's `GeneratorOutput`, and the inputs that
TRL's `GRPOTrainer` hands to its loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from pydantic import AliasChoices, BaseModel, ConfigDict, Field
from pydantic_core import PydanticUndefined

from treetrain.data.fields import Integer, Json, Mark, Name, Row, field_error
from treetrain.data.sample import MAX_TOKEN_ID, Floats, Ints, Sample

#: Names of each field, the one that is read where a row has several first, and whose name it is.
ALIASES: dict[str, dict[str, str]] = {
    "prompt_ids": {"prompt_ids": "", "prompt_token_ids": "SkyRL", "prompts": "verl"},
    "response_ids": {"response_ids": "", "responses": "verl", "completion_ids": "TRL"},
    "response_mask": {
        "response_mask": "",
        "loss_mask": "SkyRL",
        "loss_masks": "SkyRL",
        "completion_mask": "TRL",
    },
    "tool_mask": {"tool_mask": "TRL", "env_mask": "TRL"},
    "prompt_mask": {"prompt_mask": "TRL"},
    "attention_mask": {"attention_mask": ""},
    "input_ids": {"input_ids": ""},
    "rollout_log_probs": {
        "rollout_log_probs": "",
        "response_logprobs": "verl",
        "rollout_logprobs": "SkyRL",
        "sampling_per_token_logps": "TRL",
        "logprobs": "",
    },
    "advantage": {"advantage": "", "advantages": ""},
    "reward": {
        "reward": "",
        "rewards": "",
        "token_level_scores": "verl",
        "token_level_rewards": "verl",
        "reward_score": "verl",
    },
    "group": {"group": "", "uid": "verl"},
    "trajectory_id": {"trajectory_id": ""},
    "trajectory_ids": {"trajectory_ids": "SkyRL"},
    "step": {"step": ""},
}


def _named(name: str, default: Any = None) -> Any:
    return Field(default, validation_alias=AliasChoices(*ALIASES[name]))


class TrajectoryName(BaseModel):
    """SkyRL's name of a trajectory: the task, and which of its trials."""

    model_config = ConfigDict(strict=True)
    instance_id: str | int
    repetition_id: Integer


class StepRow(Row):
    """A prompt, what a policy sampled after it, and what was recorded then."""

    prompt_ids: list[Integer] = _named("prompt_ids", PydanticUndefined)
    response_ids: list[Integer] = _named("response_ids", PydanticUndefined)
    response_mask: list[Mark] | None = _named("response_mask")
    tool_mask: list[Mark] | None = _named("tool_mask")
    prompt_mask: list[Mark] | None = _named("prompt_mask")
    attention_mask: list[Mark] | None = _named("attention_mask")
    input_ids: list[Integer] | None = _named("input_ids")
    rollout_log_probs: list[float] | None = _named("rollout_log_probs")
    advantage: float | list[float] | None = _named("advantage")
    reward: float | list[float] | None = _named("reward")
    group: Name = _named("group")
    trajectory_id: Name = _named("trajectory_id")
    trajectory_ids: Name | TrajectoryName = _named("trajectory_ids")
    step: Integer | None = _named("step")


@dataclass(frozen=True)
class StepNames:
    """The names under which a row has its fields.

    Attributes:
        used: for each field that the row has, the name that is read.
    """

    used: dict[str, str]

    def __str__(self) -> str:
        owners = sorted({ALIASES[field][name] for field, name in self.used.items()} - {""})
        whose = "".join(f"; {owner}'s names" for owner in owners)
        return f"{self.used['prompt_ids']}, {self.used['response_ids']}{whose}"


def find_names(fields: Json) -> StepNames | None:
    """Finds out whether a row is a step, and what it calls its fields.

    Args:
        fields: the JSON object.

    Returns:
        The names, or None where it has no prompt and response of ids.
    """
    used: dict[str, str] = {}
    for field, names in ALIASES.items():
        for name in names:
            if name in fields:
                used[field] = name
                break
    found = all(
        field in used and isinstance(fields[used[field]], list)
        for field in ("prompt_ids", "response_ids")
    )
    return StepNames(used) if found else None


def divide_batch(fields: Json, names: StepNames, source: str) -> list[tuple[Json, str]]:
    """Divides a row that holds a batch, a list for each field, into its steps.

    Args:
        fields: the JSON object.
        names: what it calls its fields.
        source: file and line.

    Returns:
        For each step its fields and its source; the row itself where it is one step.

    Raises:
        ValueError: a field has another number of entries than there are prompts.
    """  # noqa: DOC503 (field_error makes the errors)
    prompts = cast(list[Any], fields[names.used["prompt_ids"]])
    if not any(isinstance(prompt, list) for prompt in prompts):
        return [(fields, source)]
    known = set(names.used.values())
    divided: dict[str, list[Any]] = {}
    for name, value in fields.items():
        if name in known and isinstance(value, list):
            column = cast(list[Any], value)
            if len(column) != len(prompts):
                raise field_error(
                    source, name, f"has {len(column)} entries for {len(prompts)} prompts"
                )
            divided[name] = column
    return [
        (
            {**fields, **{name: column[index] for name, column in divided.items()}},
            f"{source}[{index}]",
        )
        for index in range(len(prompts))
    ]


def sample_of_step(row: StepRow, fields: Json, source: str) -> Sample:
    """Makes the sequence of one step: the prompt, then the response, which is trained.

    Of the response, tokens are trained where `response_mask` and `tool_mask` are 1, all where there
    is neither. Padding is removed by `attention_mask`, of prompt and response together, and
    `prompt_mask`; no id is ever taken for padding.

    Args:
        row: the checked row.
        fields: the JSON object behind it.
        source: file and line.

    Returns:
        The sequence, with recorded log-probabilities, advantage and reward.

    Raises:
        ValueError: a field has another length than the ids it belongs to, an id is out of range, or
            `input_ids` are not prompt and response.
    """  # noqa: DOC503 (field_error makes the errors)
    names = find_names(fields)
    used = {} if names is None else names.used
    prompt, response = len(row.prompt_ids), len(row.response_ids)
    for name, expected, of in (
        ("response_mask", response, "of the response"),
        ("tool_mask", response, "of the response"),
        ("rollout_log_probs", response, "of the response"),
        ("advantage", response, "of the response"),
        ("reward", response, "of the response"),
        ("prompt_mask", prompt, "of the prompt"),
        ("attention_mask", prompt + response, "of prompt and response"),
    ):
        value = getattr(row, name)
        if isinstance(value, list) and len(cast(list[Any], value)) != expected:
            entries = len(cast(list[Any], value))
            raise field_error(
                source, used.get(name, name), f"has {entries} entries for {expected} tokens {of}"
            )
    ids = np.array(row.prompt_ids + row.response_ids, dtype=np.int64)
    if row.input_ids is not None and row.input_ids != ids.tolist():
        raise field_error(
            source,
            used.get("input_ids", "input_ids"),
            "must be the ids of prompt and response one after the other, or be left out",
        )
    kept = np.ones(len(ids), bool)
    if row.attention_mask is not None:
        kept &= np.array(row.attention_mask, dtype=bool)
    if row.prompt_mask is not None:
        kept[:prompt] &= np.array(row.prompt_mask, dtype=bool)
    _check_ids(ids, kept, prompt, used, source)
    weights = np.ones(response)
    for mask in (row.response_mask, row.tool_mask):
        if mask is not None:
            weights = weights * np.array(mask, dtype=np.float64)
    name = row.trajectory_ids if row.trajectory_id is None else row.trajectory_id
    group = row.group
    if isinstance(name, TrajectoryName):
        group = name.instance_id if group is None else group
        name = f"{name.instance_id}_{name.repetition_id}"
    return Sample(
        ids,
        np.concatenate([np.zeros(prompt), weights]),
        attention_mask=kept,
        group=group,
        trajectory=name,
        advantage=_over_all(row.advantage, prompt),
        logprobs=_over_all(row.rollout_log_probs, prompt),
        reward=_over_all(row.reward, prompt),
        source=source if row.step is None else f"{source}: step {row.step}",
    )


def _check_ids(ids: Ints, kept: Any, prompt: int, used: dict[str, str], source: str) -> None:
    for place in np.flatnonzero(((ids < 0) | (ids > MAX_TOKEN_ID)) & kept)[:1]:
        field, index = ("prompt_ids", place) if place < prompt else ("response_ids", place - prompt)
        raise field_error(
            source,
            f"{used.get(field, field)}[{index}]",
            f"must be in 0 .. {MAX_TOKEN_ID}, got {ids[place]}",
        )


def _over_all(value: Any, prompt: int) -> float | Floats | None:
    """A number as it is; one entry per token of the response as one per token, 0 in the prompt."""
    if not isinstance(value, list):
        return value
    return np.concatenate([np.zeros(prompt), np.array(value, dtype=np.float64)])
