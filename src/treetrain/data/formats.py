"""The kinds of rows a file may hold, each recognised by its fields and checked field by field.

A checked row says what was written; `expand` makes sequences of it.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from treetrain.data.agent_rows import AgentRow
from treetrain.data.atif import AtifRow
from treetrain.data.fields import (
    ChatRow,
    Integer,
    Json,
    Mark,
    Message,
    Name,
    Row,
    as_object,
    check_fields,
    field_error,
    load_field,
)
from treetrain.data.sharegpt import ShareGptRow
from treetrain.data.step_rows import StepRow, divide_batch, find_names

ACCEPTED = (
    "`input_ids` (with `loss_mask` or `labels`, `attention_mask`, `weights`, `keys`)",
    "`prompt` and `completion` (texts, or lists of messages)",
    "`messages` (with `tools`, `tool_calls`, `reasoning_content`)",
    "`samples` (a list of rows with one `group`)",
    "`prompt` with `replies` (a tree of messages)",
    "`prompt` and `ids` (a completion as it was sampled)",
    "`prompt_ids` and `response_ids` (a step of a policy; also by the names of verl, SkyRL, TRL)",
    "`conversations` (ShareGPT)",
    "`schema_version` ATIF-v1.x and `steps`",
    "`history` or `trajectory` (SWE-agent)",
)


class TokenRow(Row):
    """Token ids that were made elsewhere, with a mask or labels saying what is trained."""

    input_ids: list[Integer]
    loss_mask: list[Mark] | None = None
    completion_mask: list[Mark] | None = None
    assistant_masks: list[Mark] | None = None
    attention_mask: list[Mark] | None = None
    labels: list[Integer] | None = None
    weights: list[float] | None = None
    keys: list[Integer] | None = None
    advantage: float | list[float] | None = None
    logprobs: list[float] | None = None
    reward: float | list[float] | None = None


class TextRow(Row):
    """A prompt and one completion of it, as text."""

    prompt: str
    completion: str
    advantage: float | None = None
    reward: float | None = None


class RecordedRow(Row):
    """A user's question and the ids that a model sampled as its answer."""

    prompt: str
    ids: list[Integer]
    text: str | None = None
    retok: list[Integer] | None = None
    advantage: float | None = None
    reward: float | None = None


class ConversationRow(ChatRow):
    """One conversation."""

    messages: list[Message]


class CompletionRow(ChatRow):
    """A conversation of which only the completion's assistant messages are trained."""

    prompt: list[Message]
    completion: list[Message]


class _Reply(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")
    text: str
    role: str
    replies: list[_Reply]


class TreeRow(Row):
    """A message and the replies to it, each with its own replies."""

    message_tree_id: Name = None
    prompt: _Reply
    advantage: float | None = None


class SamplesRow(Row):
    """Several rows that belong to one group."""

    samples: list[Json]


FlatRow = (
    TokenRow
    | TextRow
    | RecordedRow
    | ConversationRow
    | CompletionRow
    | TreeRow
    | StepRow
    | ShareGptRow
    | AtifRow
    | AgentRow
)

#: What is said of each kind: its name, "{s}" where several get an s, and the fields that show it.
WORDS: dict[type[BaseModel], tuple[str, str]] = {
    TokenRow: ("row{s} of token ids", "input_ids"),
    TextRow: ("prompt{s} with a completion as text", "prompt, completion"),
    RecordedRow: ("prompt{s} with sampled ids", "prompt, ids"),
    ConversationRow: ("conversation{s}", "messages"),
    CompletionRow: ("conversation{s} with a completion", "prompt, completion"),
    TreeRow: ("message tree{s}", "prompt.replies"),
    StepRow: ("per-step row{s}", "prompt_ids, response_ids"),
    ShareGptRow: ("ShareGPT conversation{s}", "conversations"),
    AtifRow: ("ATIF document{s}", "schema_version, steps"),
    AgentRow: ("SWE-agent run{s}", "history"),
}


def parse_row(row: Any, source: str) -> list[tuple[FlatRow, Json, str]]:
    """Recognises a row by its fields and checks every one of them.

    Args:
        row: what JSON gave.
        source: file and line, put before every message.

    Returns:
        For each row (several where it is a list of samples): the checked row, the JSON object
        behind it, and its source.

    Raises:
        ValueError: the row is no object, or its fields fit no format.
    """  # noqa: DOC503 (field_error makes the errors)
    fields = as_object(row, source)
    names = find_names(fields)
    if names is not None:
        return [
            (check_fields(StepRow, one, place), one, place)
            for one, place in divide_batch(fields, names, source)
        ]
    fields = _with_lists(fields, source)
    kind = _recognise(fields)
    if kind is None:
        raise ValueError(
            f"{source}: the fields {sorted(fields)} fit no known kind of row; accepted are rows "
            f"with {'; '.join(ACCEPTED)}"
        )
    checked = check_fields(kind, fields, source)
    if not isinstance(checked, SamplesRow):
        return [(checked, fields, source)]
    if not checked.samples:
        raise field_error(source, "samples", "must have at least one row, got none")
    found: list[tuple[FlatRow, Json, str]] = []
    shared = {name: fields[name] for name in ("group",) if name in fields}
    for index, sample in enumerate(checked.samples):
        found += parse_row({**shared, **sample}, f"{source}: samples[{index}]")
    return found


def describe(row: FlatRow, fields: Json) -> str:
    """Says what a row was taken for.

    Args:
        row: the checked row.
        fields: the JSON object behind it.

    Returns:
        The kind, "{s}" where several of it get an s, and in brackets the fields that it was known
        by.
    """
    name, known_by = WORDS[type(row)]
    names = find_names(fields) if isinstance(row, StepRow) else None
    if names is not None:
        known_by = str(names)
    if isinstance(row, AgentRow) and row.history is None:
        known_by = "trajectory"
    return f"{name} ({known_by})"


def _with_lists(fields: Json, source: str) -> Json:
    """The row with messages that a columnar store keeps as JSON text read."""
    read: Json = {}
    for name in ("messages", "conversations", "history"):
        text = fields.get(name)
        if isinstance(text, str):
            read[name] = load_field(text, source, name, expected="a list, or JSON text of one")
    return {**fields, **read} if read else fields


def _recognise(fields: Json) -> type[FlatRow | SamplesRow] | None:
    prompt = fields.get("prompt")
    if "schema_version" in fields and "steps" in fields:
        return AtifRow
    if "input_ids" in fields:
        return TokenRow
    if "samples" in fields:
        return SamplesRow
    if "messages" in fields:
        return ConversationRow
    if "conversations" in fields:
        return ShareGptRow
    if "history" in fields or "trajectory" in fields:
        return AgentRow
    if isinstance(prompt, dict) and "replies" in prompt:
        return TreeRow
    if "prompt" in fields and "completion" in fields:
        return CompletionRow if isinstance(prompt, list) else TextRow
    if "prompt" in fields and "ids" in fields:
        return RecordedRow
    return None
