"""What the files of a run's folder must hold for a page to show them, checked when they are read.

Only what is shown is listed; whatever else stands in a file is left alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from treetrain.data.fields import validate
from treetrain.data.text_files import load_json, read_json

Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
#: Rates and sums of them are shown as durations, which are finite.
Seconds = Annotated[float, Field(ge=0, le=1e15)]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")


class _Losses(_Part):
    separate: float | None
    tree: float | None


class _Comparison(_Part):
    quantity: str
    error: float | None
    allowed: float | None
    passes: bool
    separate_error: float | None


class _LeakCheck(_Part):
    rule: str
    moved: float | None
    places: Count
    passes: bool


class _WorstToken(_Part):
    token: Count
    place: Count
    sequence: Count
    source: str | None


class Check(_Part):
    """`check.json`, a report of `verify`."""

    equal: bool
    dtype: str
    reduction: str | float
    sequences: Count
    flat_tokens: Count
    tree_tokens: Count
    loss: _Losses
    comparisons: list[_Comparison]
    leak_checks: list[_LeakCheck]
    failures: list[str]
    worst_token: _WorstToken | None
    worst_parameter: str | None


class _Both(_Part):
    flat: Count
    tree: Count


class _Pairs(_Both):
    ratio: float


class _Shape(_Part):
    parameters: Count
    layers: Count
    heads: Count
    head_size: Count


class _Texts(_Part):
    before: str
    branch: str
    sibling: str


class _Parting(_Part):
    source: str | None
    places: Count
    tokens: Count
    repeated: Count
    depth: Count
    before: list[Count]
    branch: list[Count]
    sibling: list[Count]
    text: _Texts | None = None


class _Counts(_Part):
    sequences: Count
    flat_tokens: Count
    tree_tokens: Count
    token_reduction: float
    attention_pairs: _Pairs
    flop_bound: float
    targets: Count


class _Group(_Counts):
    group: Any
    nodes: Count


class Inspected(_Counts):
    """`inspection.json`, what `tables.as_json` made."""

    pays: bool
    reason: str
    flops: _Both
    leafized_flop_bound: float
    depth_max: Count
    shape: _Shape
    notes: list[str]
    groups: list[_Group]
    partings: list[_Parting]


class StepLine(_Part):
    """A line of `metrics.jsonl`: a step, an evaluation, or both."""

    step: Count
    loss: float | None = None
    evaluation_loss: float | None = None
    flat_tokens_per_second: float | None = None
    tree_tokens_per_second: float | None = None
    flat_tokens: Count = 0
    tree_tokens: Count = 0
    seconds: Seconds = 0.0


Written = TypeVar("Written", bound=BaseModel)


def read_object(path: Path, kind: type[Written]) -> dict[str, Any] | None:
    """Reads a file of one object.

    Args:
        path: the file.
        kind: what it must hold.

    Returns:
        What is shown of it; None where there is no such file.

    Raises:
        ValueError: it holds something else; the file and the field are named.
    """  # noqa: DOC502 (the functions it calls raise)
    if not path.exists():
        return None
    return _checked(read_json(path), kind, str(path))


def read_line(text: bytes, source: str) -> dict[str, Any]:
    """Reads a line of `metrics.jsonl`.

    Args:
        text: the line.
        source: file and line.

    Returns:
        What is shown of it.

    Raises:
        ValueError: it is no object with a step, or a field is wrong; it is named.
    """  # noqa: DOC502 (the functions it calls raise)
    return _checked(load_json(text, source), StepLine, source)


def _checked(value: Any, kind: type[BaseModel], source: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{source}: must be one JSON object, got {type(value).__name__}")
    return validate(kind, value, source).model_dump(exclude_unset=True)
