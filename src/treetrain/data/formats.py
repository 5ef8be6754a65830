"""The kinds of rows a file may hold, each recognised by its fields and checked field by field.

A checked row says what was written; `expand` makes sequences of it.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

Json = dict[str, Any]
Name = str | int | None
#: An integer that fits an array; what an id may be is checked where the row's padding is known.
Integer = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]

ACCEPTED = (
    "`input_ids` (with `loss_mask` or `labels`, `attention_mask`, `weights`, `keys`)",
    "`prompt` and `completion` (texts, or lists of messages)",
    "`messages` (with `tools`, `tool_calls`, `reasoning_content`)",
    "`samples` (a list of rows with one `group`)",
    "`prompt` with `replies` (a tree of messages)",
    "`prompt` and `ids` (a completion as it was sampled)",
)


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")
    type: Literal["text"]
    text: str


class _Function(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")
    name: str
    arguments: str | Json = ""


class _ToolCall(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")
    function: _Function


class _Message(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")
    role: str
    content: str | list[_Part] | None = None
    tool_calls: list[_ToolCall | _Function] | None = None
    reasoning_content: str | None = None


class _Row(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")
    group: Name = None
    trajectory_id: Name = None


class TokenRow(_Row):
    """Token ids that were made elsewhere, with a mask or labels saying what is trained."""

    input_ids: list[Integer]
    loss_mask: list[Literal[0, 1] | bool] | None = None
    completion_mask: list[Literal[0, 1] | bool] | None = None
    assistant_masks: list[Literal[0, 1] | bool] | None = None
    attention_mask: list[Literal[0, 1] | bool] | None = None
    labels: list[Integer] | None = None
    weights: list[float] | None = None
    keys: list[Integer] | None = None
    advantage: float | list[float] | None = None


class TextRow(_Row):
    """A prompt and one completion of it, as text."""

    prompt: str
    completion: str
    advantage: float | None = None


class RecordedRow(_Row):
    """A user's question and the ids that a model sampled as its answer."""

    prompt: str
    ids: list[Integer]
    text: str | None = None
    retok: list[Integer] | None = None
    advantage: float | None = None


class _ChatRow(_Row):
    tools: list[Json] | None = None
    advantage: float | None = None

    @field_validator("tools", mode="before")
    @classmethod
    def _read_tools(cls, value: Any) -> Any:
        # Columnar stores keep schemas of different shapes as text.
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except json.JSONDecodeError as error:
            raise ValueError(f"must be a list, or JSON text of one ({error})") from error


class ConversationRow(_ChatRow):
    """One conversation."""

    messages: list[_Message]


class CompletionRow(_ChatRow):
    """A conversation of which only the completion's assistant messages are trained."""

    prompt: list[_Message]
    completion: list[_Message]


class _Reply(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")
    text: str
    role: str
    replies: list[_Reply]


class TreeRow(_Row):
    """A message and the replies to it, each with its own replies."""

    message_tree_id: Name = None
    prompt: _Reply
    advantage: float | None = None


class SamplesRow(_Row):
    """Several rows that belong to one group."""

    samples: list[Json]


FlatRow = TokenRow | TextRow | RecordedRow | ConversationRow | CompletionRow | TreeRow


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
    """
    fields = as_object(row, source)
    kind = _recognise(fields)
    if kind is None:
        raise ValueError(
            f"{source}: the fields {sorted(fields)} fit no known kind of row; accepted are rows "
            f"with {'; '.join(ACCEPTED)}"
        )
    checked = _check(kind, fields, source)
    if not isinstance(checked, SamplesRow):
        return [(checked, fields, source)]
    found: list[tuple[FlatRow, Json, str]] = []
    shared = {name: fields[name] for name in ("group",) if name in fields}
    for index, sample in enumerate(checked.samples):
        found += parse_row({**shared, **sample}, f"{source}: samples[{index}]")
    return found


def as_object(row: Any, source: str) -> Json:
    """Checks that a row is a JSON object.

    Args:
        row: what JSON gave.
        source: file and line.

    Returns:
        The row.

    Raises:
        ValueError: it is something else.
    """
    if not isinstance(row, dict):
        raise ValueError(f"{source}: a row must be a JSON object, got {type(row).__name__}")
    return cast(Json, row)


def ignored_fields(row: BaseModel) -> list[str]:
    """Names the fields of a row that nothing here reads.

    Args:
        row: a checked row.

    Returns:
        Names, as written.
    """
    return sorted(row.model_extra or ())


def field_error(source: str, name: str, problem: str) -> ValueError:
    """Makes the error for a wrong field.

    Args:
        source: file and line.
        name: the field, with the index where there is one.
        problem: what is wrong with it.

    Returns:
        The error, to be raised.
    """
    return ValueError(f"{source}: field '{name}' {problem}")


def _recognise(fields: Json) -> type[FlatRow | SamplesRow] | None:
    prompt = fields.get("prompt")
    if "input_ids" in fields:
        return TokenRow
    if "samples" in fields:
        return SamplesRow
    if "messages" in fields:
        return ConversationRow
    if isinstance(prompt, dict) and "replies" in prompt:
        return TreeRow
    if "prompt" in fields and "completion" in fields:
        return CompletionRow if isinstance(prompt, list) else TextRow
    if "prompt" in fields and "ids" in fields:
        return RecordedRow
    return None


def _check(kind: type[FlatRow | SamplesRow], fields: Json, source: str) -> FlatRow | SamplesRow:
    try:
        checked = kind.model_validate(fields)
        # Columns of numbers hold no text, and rows in rows are checked one by one.
        kinds = (str, dict, list) if issubclass(kind, _ChatRow) else (str, dict)
        for name in kind.model_fields:
            if isinstance(fields.get(name), kinds):
                _check_text(fields[name], name, source)
        return checked
    except ValidationError as error:
        raise _first_error(error, source) from error
    except RecursionError as error:
        raise field_error(source, "prompt", "must be nested less deeply") from error


def _check_text(value: Any, name: str, source: str) -> None:
    """Refuses halves of characters, which JSON can write and no tokenizer reads."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise field_error(
                source,
                name,
                f"must be text of whole characters, got the lone surrogate "
                f"{value[error.start]!r} at character {error.start}",
            ) from error
    elif isinstance(value, list):
        for index, entry in enumerate(cast(list[Any], value)):
            _check_text(entry, f"{name}[{index}]", source)
    elif isinstance(value, dict):
        for key, entry in cast(Json, value).items():
            _check_text(key, name, source)
            _check_text(entry, f"{name}.{key}", source)


def _first_error(error: ValidationError, source: str) -> ValueError:
    errors = error.errors(include_url=False)
    start = _path(errors[0]["loc"])
    # Of the branches of a union, the one that came furthest says best what is wrong.
    first = max(
        (one for one in errors if _path(one["loc"]).startswith(start)),
        key=lambda one: len(_path(one["loc"])),
    )
    if first["type"] == "missing":
        return field_error(source, _path(first["loc"]), "is required")
    got = repr(first["input"])
    got = got if len(got) <= 60 else got[:57] + "..."
    problem = first["msg"].replace("Input should be", "must be").removeprefix("Value error, ")
    return field_error(source, _path(first["loc"]), f"{problem}, got {got}")


def _path(place: tuple[int | str, ...]) -> str:
    path = ""
    for step in place:
        if isinstance(step, int):
            path += f"[{step}]"
        elif not _is_branch(step):
            path += f".{step}" if path else step
    return path


def _is_branch(step: str) -> bool:
    # pydantic puts the tried branch of a union into the place: "content.str", "literal[0,1]".
    return step.startswith(("_", "list[", "literal[", "dict[")) or step in (
        "str",
        "bool",
        "int",
        "float",
    )
