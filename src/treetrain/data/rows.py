"""Reads files of rows into samples. Nothing is dropped without a count in the report."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from treetrain.data.chat import Chat, Tokenizer, Tools
from treetrain.data.conversations import Expand
from treetrain.data.drift_watch import DriftWatch
from treetrain.data.expand import Expander, Unrendered
from treetrain.data.formats import as_object, ignored_fields, parse_row
from treetrain.data.report import ReadReport
from treetrain.data.sample import Sample
from treetrain.data.tree_file import is_tree_file, iter_tree_file
from treetrain.errors import check_type

TOOLS_BESIDE = "tools.json"


def read_samples(
    path: str | Path,
    *,
    tokenizer: Tokenizer | None = None,
    expand: Expand = "whole",
    tools: str | Path | Tools | None = None,
    select: Mapping[str, str] | None = None,
    chat_template: str | None = None,
    template_variables: Mapping[str, Any] | None = None,
    end_completions: bool = True,
    unrendered: Unrendered = "refuse",
) -> list[Sample]:
    """Reads a file of rows; `read_samples_with_report` gives the counts too.

    Args:
        path: as for `read_samples_with_report`, like everything below.
        tokenizer: needed unless all rows are token ids.
        expand: `whole` or `per_step`.
        tools: schemas of tools, or their file.
        select: values that fields of a row must have.
        chat_template: Jinja text used instead of the tokenizer's own template.
        template_variables: further variables of the template.
        end_completions: whether a completion given as text ends with the end-of-text token.
        unrendered: `refuse` or `count` tools and tool calls that the template leaves out.

    Returns:
        The sequences in the order of the file.
    """
    return read_samples_with_report(
        path,
        tokenizer=tokenizer,
        expand=expand,
        tools=tools,
        select=select,
        chat_template=chat_template,
        template_variables=template_variables,
        end_completions=end_completions,
        unrendered=unrendered,
    )[0]


def read_samples_with_report(
    path: str | Path,
    *,
    tokenizer: Tokenizer | None = None,
    expand: Expand = "whole",
    tools: str | Path | Tools | None = None,
    select: Mapping[str, str] | None = None,
    chat_template: str | None = None,
    template_variables: Mapping[str, Any] | None = None,
    end_completions: bool = True,
    unrendered: Unrendered = "refuse",
    watch: DriftWatch | None = None,
) -> tuple[list[Sample], ReadReport]:
    """Reads a file of rows into sequences, and counts what was decided on the way.

    The kind of a row is known by its fields (`formats.ACCEPTED` lists them). Rows without a group
    are one group.

    Conversations. `whole` makes one sequence of a conversation: its text is rendered and encoded
    once, and all assistant turns are trained. `per_step` makes one sequence of each assistant
    message: the context as the chat template rendered it when the message was sampled, then what
    was sampled, up to the end-of-turn token. The two are encoded apart, because that is how they
    came to be: the sampler had encoded the context before the first token was drawn, so no token
    reaches across. Only what was sampled is trained, and the conversation is the trajectory.

    Message trees. `whole` makes one sequence of each thread from root to leaf; `per_step` one of
    each assistant message, however many threads go through it.

    Prompt and completion as text are encoded apart too, for the same reason.

    Args:
        path: file of JSON lines, or one JSON array, or a tree file.
        tokenizer: tokenizer of transformers; needed unless all rows are token ids.
        expand: `whole` or `per_step`.
        tools: schemas of the tools for conversations that have none of their own, or a JSON file of
            them. None: `tools.json` beside the file, if there is one; an empty list: none.
        select: only rows whose fields have these values, compared as text; for example
            `{"kind": "cot_n16"}`.
        chat_template: Jinja text used instead of the tokenizer's own template.
        template_variables: further variables of the template, such as `enable_thinking`.
        end_completions: whether a completion given as text ends with the end-of-text token.
        unrendered: what happens when the template leaves out tools or tool calls: `refuse` or
            `count`.
        watch: finds where recorded ids are left, or None.

    Returns:
        The sequences in the order of the file, and the report.

    Raises:
        ValueError: a row is wrong (file, line, field and what was expected are named), an argument
            has an unknown value, or no row is selected.
        TypeError: an argument has another type.
    """  # noqa: DOC503 (_check_arguments raises the TypeError)
    _check_arguments(path, tokenizer, tools, select, chat_template, template_variables)
    if expand not in ("whole", "per_step"):
        raise ValueError(f"expand must be 'whole' or 'per_step', got {expand!r}")
    if unrendered not in ("refuse", "count"):
        raise ValueError(f"unrendered must be 'refuse' or 'count', got {unrendered!r}")
    path = Path(path)
    report = ReadReport(str(path))
    chat = None
    if tokenizer is not None:
        chat = Chat(tokenizer, chat_template, dict(template_variables or {}))
    beside = path.parent / TOOLS_BESIDE
    schemas, tools_file = _read_tools(tools, beside)
    expander = Expander(chat, expand, schemas, unrendered, end_completions, report, watch)
    samples: list[Sample] = []
    trees = is_tree_file(path)
    if trees:
        samples = _read_stored(path, expander, select)
    for row, source in () if trees else _read_rows(path):
        report.rows += 1
        if select and not _is_selected(row, select, source):
            report.not_selected += 1
            continue
        for checked, fields, place in parse_row(row, source):
            report.ignored_fields.update(ignored_fields(checked))
            samples += expander.samples(checked, fields, place)
    if not samples:
        raise ValueError(
            f"{path}: the file must give at least one sequence, got none of {report.rows} rows"
            f"{_hint(select)}"
        )
    report.sequences = len(samples)
    report.untrained = sum(not sample.weights[1:].any() for sample in samples)
    report.tools_file = tools_file if report.kinds["ConversationRow"] else None
    chatting = (
        report.kinds["ConversationRow"] + report.kinds["CompletionRow"] + report.kinds["TreeRow"]
    )
    report.no_closing = bool(chatting and chat is not None and not chat.closing.strip())
    return samples, report


def _check_arguments(
    path: object,
    tokenizer: object,
    tools: object,
    select: object,
    chat_template: object,
    template_variables: object,
) -> None:
    check_type("path", path, (str, Path), "the path of a file")
    if tokenizer is not None and not callable(tokenizer):
        raise TypeError(
            f"tokenizer must be a tokenizer of transformers, of AutoTokenizer.from_pretrained for "
            f"example, got {type(tokenizer).__name__}"
        )
    if not isinstance(tools, (str, Path, type(None))):
        check_type("tools", tools, Sequence, "a list of tool schemas or the path of their file")
        for index, schema in enumerate(cast(Sequence[object], tools)):
            check_type(f"tools[{index}]", schema, Mapping, "a tool schema, as a dict")
    check_type("chat_template", chat_template, (str, type(None)), "Jinja text")
    check_type("template_variables", template_variables, (Mapping, type(None)), "a dict")
    check_type("select", select, (Mapping, type(None)), "a dict of field names and values")
    for name, value in cast(Mapping[str, object], select or {}).items():
        check_type(f"select[{name!r}]", value, str, "text, as fields are compared as text")


def _hint(select: Mapping[str, str] | None) -> str:
    return f" selected by {dict(select)}" if select else ""


def _read_tools(tools: str | Path | Tools | None, beside: Path) -> tuple[Tools | None, str | None]:
    if tools is None:
        if not beside.is_file():
            return None, None
        tools = beside
    if not isinstance(tools, (str, Path)):
        return tools, None
    try:
        schemas = json.loads(Path(tools).read_bytes())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{tools}: must be a JSON list of tool schemas: {error}") from error
    if not _is_list_of_objects(schemas):
        raise ValueError(f"{tools}: must be a JSON list of tool schemas, got something else")
    return schemas, str(tools)


def _read_stored(path: Path, expander: Expander, select: Mapping[str, str] | None) -> list[Sample]:
    """Reads a tree file; each of its sequences counts as a row."""
    samples: list[Sample] = []
    for index, sample in enumerate(iter_tree_file(path)):
        source = sample.source or f"{path.name}: sequence {index}"
        names = {"group": sample.group, "trajectory_id": sample.trajectory}
        expander.report.rows += 1
        if select and not _is_selected(names, select, source):
            expander.report.not_selected += 1
            continue
        expander.see_stored(sample, source)
        samples.append(sample)
    return samples


def _is_list_of_objects(value: Any) -> bool:
    if not isinstance(value, list):
        return False
    return all(isinstance(entry, dict) for entry in cast(list[Any], value))


def _is_selected(row: Any, select: Mapping[str, str], source: str) -> bool:
    fields = as_object(row, source)
    for name, value in select.items():
        if name not in fields:
            raise ValueError(
                f"{source}: field '{name}' is needed to select rows, got the fields "
                f"{sorted(fields)}"
            )
        if str(fields[name]) != value:
            return False
    return True


def _read_rows(path: Path) -> Iterator[tuple[Any, str]]:
    with path.open("rb") as file:
        data = file.read()
    if data.startswith(b"\xef\xbb\xbf"):
        data = data[3:]
    if data.lstrip()[:1] == b"[":
        rows: Sequence[Any] = _load(data, str(path.name))
        for index, row in enumerate(rows):
            yield row, f"{path.name}[{index}]"
        return
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            yield _load(line, f"{path.name}:{number}"), f"{path.name}:{number}"


def _load(text: bytes, source: str) -> Any:
    try:
        try:
            return json.loads(text)
        except (json.JSONDecodeError, UnicodeDecodeError):
            raise
        except ValueError:
            return json.loads(text, parse_int=_parse_int)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{source}: must be JSON, got an error at column {error.colno}: {error.msg}"
        ) from error
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{source}: must be UTF-8, got {error.reason} at byte {error.start}"
        ) from error
    except RecursionError as error:
        raise ValueError(f"{source}: must be nested less deeply to be read as JSON") from error


def _parse_int(digits: str) -> int | str:
    """An integer, or the digits of one that Python refuses to read, for the field's own check."""
    try:
        return int(digits)
    except ValueError:
        return digits
