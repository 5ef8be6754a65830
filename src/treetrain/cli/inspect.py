"""`treetrain inspect`: counts what sharing saves in a file, and says whether it pays.

Rows of token ids are counted without torch and without transformers.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from treetrain.cli.reading import add_reading_arguments, read_file

if TYPE_CHECKING:
    from treetrain.tree.metrics import ModelShape


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `treetrain inspect`.

    Args:
        parser: parser of this verb.
    """
    add_reading_arguments(parser)
    parser.add_argument(
        "--shape",
        metavar="P,L,H,D",
        help="model for the FLOP bound: parameters without embeddings, layers, query heads, head "
        "size (default: 440000000,28,16,128)",
    )
    parser.add_argument(
        "--html", metavar="PAGE", type=Path, help="write the counts and the largest trees as a page"
    )


def run(args: argparse.Namespace) -> int:
    """Reads the file, counts, prints.

    Args:
        args: parsed arguments.

    Returns:
        Exit code 0.

    Raises:
        ValueError: the page cannot be written where it is wanted.
    """  # noqa: DOC502 (_check_page raises)
    # Told before the file is read.
    if args.html is not None:
        _check_page(args.html)
    from treetrain.cli.tokenizers import load_tokenizer, plain_decode
    from treetrain.data.drift_watch import DriftWatch
    from treetrain.progress import Progress
    from treetrain.report.drift import measure_drift
    from treetrain.report.inspection import DEFAULT_SHAPE, inspect_samples
    from treetrain.report.largest import largest_trees
    from treetrain.report.page import PageContent, write_page
    from treetrain.report.tables import as_json, as_text

    progress = Progress()
    progress(f"reading {args.file}")
    shape = DEFAULT_SHAPE if args.shape is None else _shape(args.shape)
    tokenizer = None if args.tokenizer is None else load_tokenizer(args.tokenizer)
    decode = None if tokenizer is None else plain_decode(tokenizer)
    watch = DriftWatch(decode)
    samples, report = read_file(args, tokenizer, watch=watch)
    progress(f"counting {len(samples)} sequences")
    inspection = inspect_samples(samples, shape=shape)
    drift = measure_drift(watch)
    progress.wipe()
    if args.html is not None:
        write_page(
            args.html,
            PageContent(
                title=args.file.name,
                inspection=as_json(inspection, report, decode, drift=drift),
                trees=largest_trees(samples),
                decode=decode,
            ),
        )
    if args.json:
        print(json.dumps(as_json(inspection, report, decode, drift=drift), ensure_ascii=False))
    else:
        print(as_text(inspection, report, decode, drift=drift))
    return 0


def _check_page(page: Path) -> None:
    from treetrain.report.page import is_page

    if not page.parent.is_dir():
        raise ValueError(f"--html must lie in a folder that exists, got {str(page)!r}")
    if page.exists() and not page.is_file():
        raise ValueError(f"--html must be a file, got {str(page)!r}")
    if page.exists() and not is_page(page):
        raise ValueError(
            f"--html must be a new file or an earlier page, got {str(page)!r}, which holds "
            "something else; name another file"
        )


def _shape(text: str) -> ModelShape:
    from treetrain.tree.metrics import ModelShape

    try:
        parameters, layers, heads, head_size = (int(part) for part in text.split(","))
    except ValueError as error:
        raise ValueError(f"--shape must be four integers P,L,H,D, got {text!r}") from error
    return ModelShape(parameters=parameters, layers=layers, heads=heads, head_size=head_size)
