"""`treetrain convert`: writes the sequences of a file as a file of trees, or as rows of token ids.

A file is whole or not there: it is written beside its place and moved when it is done.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treetrain.cli.reading import add_reading_arguments, read_file

if TYPE_CHECKING:
    from treetrain.data.sample import Sample

TREES = ".tree.jsonl"
ROWS = ".jsonl"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `treetrain convert`.

    Args:
        parser: parser of this verb.
    """
    add_reading_arguments(parser)
    parser.add_argument(
        "out",
        metavar="OUT",
        type=Path,
        help=f"file to be written: trees where it ends in {TREES}, rows of token ids where it ends "
        f"in {ROWS}",
    )
    parser.add_argument(
        "--unrendered",
        choices=("refuse", "count"),
        default="refuse",
        help="tools and tool calls that the chat template leaves out (default: refuse)",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace OUT where there is one already"
    )


def run(args: argparse.Namespace) -> int:
    """Reads the file and writes the other.

    Args:
        args: parsed arguments.

    Returns:
        Exit code 0.
    """
    from treetrain.cli.tokenizers import load_tokenizer
    from treetrain.progress import Progress
    from treetrain.wording import say_count

    _check_out(args.out, overwrite=args.overwrite)
    progress = Progress()
    progress(f"reading {args.file}")
    tokenizer = None if args.tokenizer is None else load_tokenizer(args.tokenizer)
    samples, report = read_file(args, tokenizer, unrendered=args.unrendered)
    progress(f"writing {args.out}")
    counts = _write(samples, args.out)
    progress.wipe()
    if args.json:
        found = {"file": report.path, "rows": report.rows, "out": str(args.out), **counts}
        print(json.dumps({**found, "notes": report.notes()}, ensure_ascii=False))
        return 0
    print(f"{report.path}: {say_count(report.rows, 'row')}")
    for note in report.notes():
        print(f"  note: {note}")
    print(f"{args.out}: {_said(counts)}")
    if counts["sources_left_out"]:
        print(
            f"  note: {say_count(counts['sources_left_out'], 'sequence')} written without the file "
            f"and line they were read from, which rows of token ids have no field for"
        )
    return 0


def _said(counts: dict[str, Any]) -> str:
    from treetrain.wording import say_count

    held = say_count(counts["sequences"], "sequence")
    flat = f"{counts['flat_tokens']:,}"
    if counts["trees"] is None:
        return f"{held}, {flat} tokens; {counts['bytes']:,} bytes"
    return (
        f"{held} in {say_count(counts['trees'], 'tree')}, {counts['tree_tokens']:,} tree tokens of "
        f"{flat} flat; {counts['bytes']:,} bytes"
    )


def _check_out(out: Path, *, overwrite: bool) -> None:
    if not out.name.endswith(ROWS):
        raise ValueError(f"OUT must end in {TREES} or {ROWS}, got {str(out)!r}")
    if not out.parent.is_dir():
        raise ValueError(f"OUT must lie in a folder that exists, got {str(out)!r}")
    if out.exists() and not out.is_file():
        raise ValueError(f"OUT must be a file, got {str(out)!r}")
    # A link that leads nowhere is somebody's, too.
    if (out.exists() or out.is_symlink()) and not overwrite:
        raise ValueError(
            f"OUT must not exist, got {str(out)!r}; name another one, or give --overwrite"
        )


def _write(samples: Sequence[Sample], out: Path) -> dict[str, Any]:
    from treetrain.data.tree_file import tree_lines
    from treetrain.errors import naming_file
    from treetrain.tree.build import build_prefix_tree

    counts: dict[str, Any] = {
        "sequences": len(samples),
        "trees": None,
        "tree_tokens": None,
        "flat_tokens": sum(map(len, samples)),
        "sources_left_out": 0,
    }
    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    with naming_file(out):
        try:
            with partial.open("x", encoding="utf-8", newline="\n") as file:
                if out.name.endswith(TREES):
                    for line, done in tree_lines(samples, build_prefix_tree):
                        file.write(line)
                        counts.update(trees=done.trees, tree_tokens=done.tree_tokens)
                else:
                    file.writelines(_row_lines(samples))
                    counts["sources_left_out"] = sum(one.source is not None for one in samples)
                file.flush()
                os.fsync(file.fileno())
            counts["bytes"] = partial.stat().st_size
            os.replace(partial, out)
        finally:
            partial.unlink(missing_ok=True)
    return counts


def _row_lines(samples: Sequence[Sample]) -> Iterator[str]:
    from treetrain.data.written_rows import flat_row

    for index, sample in enumerate(samples):
        yield json.dumps(flat_row(sample, index)) + "\n"
