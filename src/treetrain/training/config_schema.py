"""The JSON schema of a configuration, with what each key means, for editors."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel

from treetrain.training.config import TrainConfig

_LIMITS = {
    "ge": "minimum",
    "le": "maximum",
    "gt": "exclusiveMinimum",
    "lt": "exclusiveMaximum",
}
_ATTRIBUTE = re.compile(r"^    (\w+): (.*)$")


def make_schema() -> dict[str, Any]:
    """Make the JSON schema of a configuration.

    Returns:
        The schema; each key has the description that its part's docstring gives.

    Example:
        >>> make_schema()["properties"]["keep_last"]["default"]
        2
    """
    schema = _name_limits(TrainConfig.model_json_schema())
    parts = {part.__name__: part for part in _find_parts(TrainConfig)}
    _describe(schema, TrainConfig)
    for name, definition in schema["$defs"].items():
        _describe(definition, parts[name])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "treetrain train",
    }


def describe_keys(part: type[BaseModel]) -> dict[str, str]:
    """Read what each key of a part means.

    Args:
        part: a part of a configuration.

    Returns:
        One text for each key, from the "Attributes" of its docstring.
    """
    _, _, attributes = inspect.getdoc(part).partition("Attributes:\n")  # pyright: ignore
    found: dict[str, str] = {}
    name = ""
    for line in attributes.splitlines():
        if start := _ATTRIBUTE.match(line):
            name, text = start.groups()
            found[name] = text
        elif name and line.strip():
            found[name] += f" {line.strip()}"
    return found


def _describe(schema: dict[str, Any], part: type[BaseModel]) -> None:
    schema["description"] = inspect.getdoc(part).partition("\n\n")[0]  # pyright: ignore
    texts = describe_keys(part)
    for name, key in schema["properties"].items():
        key.pop("title", None)
        key["description"] = texts[name]
    # A single name stands for a list of one.
    files = schema["properties"].get("files")
    if files is not None:
        several = {
            key: files.pop(key) for key in ("type", "items", "minItems", "anyOf") if key in files
        }
        files["anyOf"] = [{"type": "string"}, *several.pop("anyOf", [several])]


def _name_limits(schema: Any) -> Any:
    """Limits of numbers by their names in JSON schema; pydantic leaves some under its own."""
    if isinstance(schema, list):
        return [_name_limits(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    return {_LIMITS.get(name, name): _name_limits(value) for name, value in schema.items()}


def _find_parts(part: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield part
    for field in part.model_fields.values():
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from _find_parts(kind)
