"""Reads a configuration from a YAML file and overrides; what is wrong is said by its key."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from treetrain.data.text_files import read_text
from treetrain.training.config import TrainConfig

#: Values and levels of a configuration, far beyond any that somebody wrote.
MOST_VALUES = 100_000
DEEPEST = 100


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> TrainConfig:
    """Read a configuration file.

    Args:
        path: the YAML file.
        overrides: "a.b=value" each; the value is read as YAML, so that numbers, lists and null are
            what they look like.

    Returns:
        The configuration.

    Raises:
        ValueError: the file is not UTF-8 or no YAML mapping, a key is unknown or missing, or a
            value does not fit; the key is named.
    """
    path = Path(path)
    values = _load_yaml(read_text(path), str(path))
    if not isinstance(values, dict):
        raise ValueError(f"{path}: must be a mapping of keys, got {type(values).__name__}")
    for override in overrides:
        _override(values, override)
    _check_size(values, str(path))
    try:
        return TrainConfig.model_validate(values)
    except ValidationError as error:
        found = "; ".join(_explain(one, values) for one in error.errors())
        raise ValueError(f"{path}: {found}") from error


def _load_yaml(text: str, source: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ValueError(f"{source}: must be YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise ValueError(f"{source}: must be nested less deeply to be read as YAML") from error


def _check_size(values: Any, source: str) -> None:
    """Refuses what an alias makes endless, or so large or deep that it could not be written out."""
    waiting, seen = [(values, 0)], 0
    while waiting:
        value, depth = waiting.pop()
        seen += 1
        if depth > DEEPEST:
            raise ValueError(f"{source}: must be nested at most {DEEPEST} levels deep, got more")
        if seen > MOST_VALUES:
            raise ValueError(
                f"{source}: must hold at most {MOST_VALUES:,} values, aliases written out, got more"
            )
        inner = value.values() if isinstance(value, dict) else value
        if isinstance(value, dict | list):
            waiting += [(one, depth + 1) for one in inner]


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice, of which YAML would take the last; names wrong scalars."""

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        # A date that is none, an integer of too many digits, a tag that does not fit: PyYAML lets
        # through whatever the constructor of the type raises.
        except (ValueError, LookupError, AttributeError) as error:
            raise yaml.constructor.ConstructorError(
                None, None, f"{node.value!r:.60} does not fit {node.tag}: {error}", node.start_mark
            ) from error

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r:.60} is a list or a mapping", key_node.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} stands twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def _override(values: dict[str, Any], override: str) -> None:
    name, sign, text = override.partition("=")
    if not sign or not all(name.split(".")):
        raise ValueError(f"--set must be KEY.KEY=VALUE, got {override!r}")
    value = _load_yaml(text, f"--set {name}")
    *parents, last = name.split(".")
    place: Any = values
    for depth, parent in enumerate(parents):
        if place.get(parent) is None:
            place[parent] = {}
        place = place[parent]
        if not isinstance(place, dict):
            raise ValueError(
                f"--set {name}: {'.'.join(parents[: depth + 1])!r} must be a mapping, got {place!r}"
            )
    place[last] = value


def _explain(error: Any, values: dict[str, Any]) -> str:
    location = [part for part in error["loc"] if not _is_union_branch(part)]
    key = ".".join(str(part) for part in location)
    if error["type"] == "extra_forbidden":
        *parents, last = location
        known = list(_fields_at(parents))
        close = get_close_matches(str(last), known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"
        return f"unknown key {key!r}; {hint}"
    if error["type"] == "missing":
        return f"key {key!r} is missing{_choices(location)}"
    message = error["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    shown = "" if isinstance(error["input"], dict) else f", got {error['input']!r:.200}"
    return f"{key or 'the configuration'}: {message}{shown}"


def _is_union_branch(part: Any) -> bool:
    """Whether part of a location names a type that pydantic tried, not a key."""
    return isinstance(part, str) and part.startswith(("literal[", "function-", "list["))


def _fields_at(parents: Sequence[Any]) -> list[str]:
    part: Any = TrainConfig
    for name in parents:
        annotation = part.model_fields[name].annotation
        options = [annotation, *get_args(annotation)]
        part = next(o for o in options if isinstance(o, type) and issubclass(o, BaseModel))
    return list(part.model_fields)


def _choices(location: Sequence[Any]) -> str:
    if list(location) != ["reduction"]:
        return ""
    return (
        "; it decides what a sequence weighs and has no default: path_mean, sequence_mean, "
        "token_mean, trajectory_mean, sum, or a number to divide by"
    )
