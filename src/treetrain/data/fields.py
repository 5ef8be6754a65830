"""What the kinds of rows share: fields of every row, messages, and the error of a wrong field.

`formats` holds the kinds and tells them apart.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    field_validator,
)

Json = dict[str, Any]
Name = str | int | None
#: An integer that fits an array; what an id may be is checked where the row's padding is known.
Integer = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
#: An entry of a mask.
Mark = Literal[0, 1] | bool


def check_schema(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Checks what is read of a tool's schema.

    Args:
        schema: the schema, or one inside `function`.

    Returns:
        The schema.

    Raises:
        ValueError: `function` is no object.
    """
    if not isinstance(schema.get("function", schema), Mapping):
        raise ValueError("must be a tool schema, whose 'function' is an object")
    return schema


#: A tool's schema.
Schema = Annotated[Json, AfterValidator(check_schema)]


class Part(BaseModel):
    """A piece of text in a message; no other pieces are read."""

    model_config = ConfigDict(strict=True, extra="allow")
    type: Literal["text"]
    text: str


class Function(BaseModel):
    """A function that was called."""

    model_config = ConfigDict(strict=True, extra="allow")
    name: str
    arguments: str | Json = ""


class ToolCall(BaseModel):
    """A call as chat interfaces write it."""

    model_config = ConfigDict(strict=True, extra="allow")
    function: Function


def _kind_of_call(call: Any) -> str:
    if isinstance(call, BaseModel):
        return type(call).__name__
    return "ToolCall" if isinstance(call, dict) and "function" in call else "Function"


#: A call, or its function alone; which of them is told by the field `function`.
Call = Annotated[
    Annotated[ToolCall, Tag("ToolCall")] | Annotated[Function, Tag("Function")],
    Discriminator(_kind_of_call),
]


class Message(BaseModel):
    """A message as chat interfaces write it."""

    model_config = ConfigDict(strict=True, extra="allow")
    role: str
    content: str | list[Part] | None = None
    tool_calls: list[Call] | None = None
    reasoning_content: str | None = None


class Row(BaseModel):
    """What every row may have."""

    model_config = ConfigDict(strict=True, extra="allow")
    group: Name = None
    trajectory_id: Name = None


class ChatRow(Row):
    """What every row of messages may have."""

    tools: list[Schema] | None = None
    advantage: float | None = None
    reward: float | None = None

    @field_validator("tools", mode="before")
    @classmethod
    def _read_tools(cls, value: Any) -> Any:
        # Columnar stores keep schemas of different shapes as text.
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value) if value else None
        except (ValueError, RecursionError) as error:
            raise ValueError(f"must be a list, or JSON text of one ({error})") from error


def load_field(text: str, source: str, name: str, *, expected: str) -> Any:
    """Reads a field that holds JSON as text.

    Args:
        text: the text.
        source: file and line.
        name: the field.
        expected: what it must be.

    Returns:
        What JSON gave.

    Raises:
        ValueError: it is no JSON, or has halves of characters.
    """  # noqa: DOC503 (field_error makes the errors)
    try:
        value = json.loads(text)
    # Beside what is no JSON: integers of too many digits.
    except (ValueError, RecursionError) as error:
        raise field_error(
            source, name, f"must be {expected}, got {text[:60]!r}: {error}"
        ) from error
    check_text(value, source, name)
    return value


Checked = TypeVar("Checked", bound=BaseModel)


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


def validate(kind: type[Checked], value: Any, source: str) -> Checked:
    """Checks a value against a model of pydantic.

    Args:
        kind: the model.
        value: what JSON gave.
        source: file, or file and line.

    Returns:
        The checked value.

    Raises:
        ValueError: a field is wrong; it is named.
    """  # noqa: DOC503 (field_error makes the errors)
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise _first_error(error, source) from error


def check_fields(kind: type[Checked], fields: Json, source: str) -> Checked:
    """Checks every field of a row.

    Args:
        kind: the kind of row.
        fields: the JSON object.
        source: file and line.

    Returns:
        The checked row.

    Raises:
        ValueError: a field is wrong; it is named.
    """  # noqa: DOC502 (validate and check_text raise)
    checked = validate(kind, fields, source)
    if isinstance(checked, ChatRow):
        # It may have been text, in which halves of characters are still written out.
        check_text(checked.tools, source, "tools")
    # Columns of numbers hold no text, and rows in rows are checked one by one.
    kinds = (str, dict, list) if issubclass(kind, ChatRow) else (str, dict)
    for name in kind.model_fields:
        if isinstance(fields.get(name), kinds):
            check_text(fields[name], source, name)
    return checked


def check_text(value: Any, source: str, name: str) -> None:
    """Refuses halves of characters, which JSON can write and no tokenizer reads.

    Args:
        value: a field, or a part of one.
        source: file and line.
        name: the field.

    Raises:
        ValueError: a text in it holds one; its place is named.
    """  # noqa: DOC503 (field_error makes the errors)
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
            # Token ids may be long, and hold no text.
            if isinstance(entry, str | list | dict):
                check_text(entry, source, f"{name}[{index}]")
    elif isinstance(value, dict):
        for key, entry in cast(Json, value).items():
            check_text(key, source, name)
            check_text(entry, source, f"{name}.{key}")


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
        "Function",
        "ToolCall",
        "TrajectoryName",
    )
