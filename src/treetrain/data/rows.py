"""Reads files of rows into samples. Nothing is dropped without a count in the report.

This file holds what is called; `reader` does the pass, `containers` opens files, `formats` knows
the kinds of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from treetrain.data.chat import Chat, Tokenizer, Tools
from treetrain.data.conversation import Expand
from treetrain.data.drift_watch import DriftWatch
from treetrain.data.expand import Expander
from treetrain.data.reader import TOOLS_BESIDE, Reader, read_tools
from treetrain.data.rendered import Unrendered
from treetrain.data.report import ReadReport
from treetrain.data.sample import Sample
from treetrain.errors import check_type


def read_samples(
    path: str | Path,
    report: ReadReport | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    expand: Expand = "whole",
    tools: str | Path | Tools | None = None,
    select: Mapping[str, str] | None = None,
    chat_template: str | None = None,
    template_variables: Mapping[str, Any] | None = None,
    end_completions: bool = True,
    unrendered: Unrendered = "refuse",
    split: str | None = None,
    skip_bad_rows: bool = False,
    watch: DriftWatch | None = None,
) -> list[Sample]:
    """Reads a file of rows into sequences; `report` counts what was decided on the way.

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
        path: file of JSON lines, one JSON array or object, a parquet file, a folder saved by
            `datasets`, or a tree file.
        report: counts, added to, a `ReadReport(str(path))`; None: not kept.
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
        split: which split of a folder that has several; None where there is one.
        skip_bad_rows: whether a wrong row is skipped, counted and listed in the report instead of
            being an error. A file that breaks off is an error either way.
        watch: finds where recorded ids are left, or None.

    Returns:
        The sequences in the order of the file.

    Raises:
        ValueError: a row is wrong (file, line, field and what was expected are named), an argument
            has an unknown value, or no row is selected.
        TypeError: an argument has another type.
    """  # noqa: DOC502 (iter_samples raises)
    return list(
        iter_samples(
            path,
            report,
            tokenizer=tokenizer,
            expand=expand,
            tools=tools,
            select=select,
            chat_template=chat_template,
            template_variables=template_variables,
            end_completions=end_completions,
            unrendered=unrendered,
            split=split,
            skip_bad_rows=skip_bad_rows,
            watch=watch,
        )
    )


def iter_samples(
    path: str | Path,
    report: ReadReport | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    expand: Expand = "whole",
    tools: str | Path | Tools | None = None,
    select: Mapping[str, str] | None = None,
    chat_template: str | None = None,
    template_variables: Mapping[str, Any] | None = None,
    end_completions: bool = True,
    unrendered: Unrendered = "refuse",
    split: str | None = None,
    skip_bad_rows: bool = False,
    watch: DriftWatch | None = None,
) -> Iterator[Sample]:
    """Reads rows one by one; the memory it takes does not grow with the file.

    Args:
        path: as for `read_samples`, like everything below.
        report: counts, added to while rows are read and complete at the end; None: not kept.
        tokenizer: needed unless all rows are token ids.
        expand: `whole` or `per_step`.
        tools: schemas of tools, or their file.
        select: values that fields of a row must have.
        chat_template: Jinja text used instead of the tokenizer's own template.
        template_variables: further variables of the template.
        end_completions: whether a completion given as text ends with the end-of-text token.
        unrendered: `refuse` or `count` tools and tool calls that the template leaves out.
        split: which split of a folder that has several.
        skip_bad_rows: whether wrong rows are skipped and counted.
        watch: finds where recorded ids are left, or None.

    Returns:
        An iterator over the sequences in the order of the file. It raises what
        `read_samples` raises of rows when it comes to them.

    Raises:
        ValueError: an argument has an unknown value.
        TypeError: an argument has another type.
    """  # noqa: DOC503 (_check_arguments raises the TypeError)
    _check_arguments(path, tokenizer, tools, select, chat_template, template_variables)
    check_type("report", report, (ReadReport, type(None)), "a ReadReport")
    check_type("split", split, (str, type(None)), "the name of a split")
    check_type("skip_bad_rows", skip_bad_rows, bool, "True or False")
    if expand not in ("whole", "per_step"):
        raise ValueError(f"expand must be 'whole' or 'per_step', got {expand!r}")
    if unrendered not in ("refuse", "count"):
        raise ValueError(f"unrendered must be 'refuse' or 'count', got {unrendered!r}")
    path = Path(path)
    report = ReadReport(str(path)) if report is None else report
    chat = None
    if tokenizer is not None:
        chat = Chat(tokenizer, chat_template, dict(template_variables or {}))
    schemas, report.tools_file = read_tools(tools, path.parent / TOOLS_BESIDE)
    expander = Expander(
        chat=chat,
        expand=expand,
        tools=schemas,
        unrendered=unrendered,
        end_completions=end_completions,
        report=report,
        watch=watch,
    )
    return Reader(
        path=path,
        expander=expander,
        select=dict(select or {}),
        split=split,
        skip_bad_rows=skip_bad_rows,
        report=report,
    ).samples()


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
