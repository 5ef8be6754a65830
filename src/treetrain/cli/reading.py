"""The arguments that say how a file of rows is read, for every verb that reads one."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treetrain.data.drift_watch import DriftWatch
    from treetrain.data.rendered import Unrendered
    from treetrain.data.report import ReadReport
    from treetrain.data.sample import Sample

#: What messages call an argument of `read_samples`, and the option that sets it.
OPTIONS = {
    "tokenizer=...": "--tokenizer T, a folder or a model's name ('demo' for a first look)",
    "expand='per_step'": "--expand per_step",
    "expand='whole'": "--expand whole",
    "unrendered='count'": "--unrendered count",
    "another chat_template": "another --chat-template",
    "split=...": "--split S",
}

DEMO_TEMPLATE = Path(__file__).parents[1] / "demo" / "tokenizer" / "chat_template.jinja"


def add_reading_arguments(parser: argparse.ArgumentParser, *, without: str | None = None) -> None:
    """Adds the arguments that say how a file of rows is read; `read_file` takes their values.

    Args:
        parser: parser of any verb that reads rows.
        without: what happens without a file, for the help; None: there must be one.
    """
    parser.add_argument(
        "file",
        metavar="FILE",
        type=Path,
        nargs=None if without is None else "?",
        help="JSON lines, one JSON array or object, a parquet file, or a folder saved by datasets"
        + ("" if without is None else f"; {without}"),
    )
    parser.add_argument(
        "--tokenizer",
        metavar="T",
        help="folder, .gguf file, 'demo', 'smollm2' or a model's name; not needed for token ids",
    )
    parser.add_argument(
        "--expand",
        choices=("whole", "per_step"),
        default="whole",
        help="one sequence per conversation, or one per assistant message (default: whole)",
    )
    parser.add_argument(
        "--tools",
        metavar="FILE",
        help="JSON list of tool schemas, 'none' for none (default: tools.json beside FILE, if any)",
    )
    parser.add_argument(
        "--select",
        metavar="FIELD=VALUE",
        action="append",
        default=[],
        help="only rows with this value; may be repeated",
    )
    parser.add_argument(
        "--chat-template",
        metavar="FILE",
        help="Jinja file instead of the tokenizer's own; 'demo' for the one this package ships",
    )
    parser.add_argument(
        "--template-variable",
        metavar="NAME=JSON",
        action="append",
        default=[],
        help="variable of the chat template, for example enable_thinking=false; may be repeated",
    )
    parser.add_argument("--split", metavar="S", help="which split of a folder that has several")
    parser.add_argument(
        "--skip-bad-rows",
        action="store_true",
        help="skip wrong rows, count and list them (default: the first is an error)",
    )


def add_group_option(parser: argparse.ArgumentParser) -> None:
    """Adds `--group`, which `read_groups` takes.

    Args:
        parser: parser of a verb that may take some groups of its file.
    """
    parser.add_argument(
        "--group", metavar="G", action="append", help="only this group; may be repeated"
    )


def read_groups(args: argparse.Namespace, tokenizer: Any) -> tuple[list[Sample], list[str]]:
    """Reads the file, and takes the groups that are asked for.

    Args:
        args: parsed arguments, with those of `add_group_option` and `--json`.
        tokenizer: what `load_tokenizer` gave, or None.

    Returns:
        The sequences, and what is to be known of them.
    """
    from treetrain.cli.limits import select_groups

    samples, reading = read_file(args, tokenizer)
    samples, notes = select_groups(samples, args.group)
    return samples, reading.notes(every_skipped=args.json) + notes


def read_file(
    args: argparse.Namespace,
    tokenizer: Any,
    *,
    watch: DriftWatch | None = None,
    unrendered: Unrendered = "count",
) -> tuple[list[Sample], ReadReport]:
    """Reads the file that the arguments of `add_reading_arguments` name.

    What a chat template leaves out is counted here, not refused, unless that is asked for: counting
    and comparing are right for whatever text there is.

    Args:
        args: parsed arguments.
        tokenizer: what `load_tokenizer` gave, or None.
        watch: finds where recorded ids are left, or None.
        unrendered: what happens to tools and calls that the template leaves out.

    Returns:
        The sequences, and the counts.

    Raises:
        ValueError: as there; where the way out is an argument, the option is named.
    """
    from treetrain.data.report import ReadReport
    from treetrain.data.rows import read_samples

    select = dict(_split(pair, "--select") for pair in args.select)
    variables = dict(_split(pair, "--template-variable") for pair in args.template_variable)
    text = read_template(args.chat_template)
    report = ReadReport(str(args.file))
    try:
        samples = read_samples(
            args.file,
            report,
            tokenizer=tokenizer,
            expand=args.expand,
            tools=[] if args.tools == "none" else args.tools,
            select=select,
            chat_template=text,
            template_variables={name: _json(value) for name, value in variables.items()},
            unrendered=unrendered,
            watch=watch,
            split=args.split,
            skip_bad_rows=args.skip_bad_rows,
        )
    except ValueError as error:
        message = str(error)
        for argument, option in OPTIONS.items():
            message = message.replace(argument, option)
        raise ValueError(message) from error
    return samples, report


def read_template(name: str | None) -> str | None:
    """Reads a chat template.

    Args:
        name: a Jinja file, "demo" for the shipped one, or None.

    Returns:
        Jinja text, or None for the tokenizer's own.

    Raises:
        ValueError: the file is not UTF-8.
    """  # noqa: DOC502 (read_text raises)
    from treetrain.data.text_files import read_text

    if name is None:
        return None
    path = DEMO_TEMPLATE if name == "demo" else Path(name)
    return read_text(path)


def _split(pair: str, option: str) -> tuple[str, str]:
    name, sign, value = pair.partition("=")
    if not sign or not name:
        raise ValueError(f"{option} must be NAME=VALUE, got {pair!r}")
    return name, value


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
