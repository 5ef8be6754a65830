"""`treetrain verify`: checks that trees equal separate sequences on your model and your data."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from treetrain.cli.reading import add_reading_arguments, read_file

if TYPE_CHECKING:
    from treetrain.data.sample import Sample

EXIT_EQUAL = 0
EXIT_NOT_EQUAL = 1
REDUCTIONS = ("path_mean", "sequence_mean", "token_mean", "trajectory_mean", "sum")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `treetrain verify`.

    Args:
        parser: parser of this verb.
    """
    add_reading_arguments(parser)
    parser.add_argument(
        "--model",
        metavar="M",
        required=True,
        help="folder, .gguf file, 'smollm2', 'tiny:TYPE' (random weights, for example tiny:llama) "
        "or a model's name",
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "float64", "bfloat16"),
        default="float32",
        help="dtype of weights and computation (default: float32)",
    )
    parser.add_argument(
        "--reduction",
        choices=REDUCTIONS,
        default="path_mean",
        help="reduction of the loss that is compared (default: path_mean)",
    )
    parser.add_argument(
        "--group", metavar="G", action="append", help="only this group; may be repeated"
    )
    parser.add_argument(
        "--limit-tokens",
        metavar="N",
        type=int,
        help="whole sequences up to N flat tokens, first those that share a prefix and branch",
    )
    parser.add_argument(
        "--max-tokens",
        metavar="N",
        type=int,
        help="tree tokens of one packed row (default: everything in one row)",
    )
    parser.add_argument(
        "--backend", metavar="B", help="attention backend: slices or reference (default: auto)"
    )
    parser.add_argument(
        "--attention",
        choices=("sdpa", "eager"),
        help="attention implementation of the plain model (default: transformers' choice)",
    )
    parser.add_argument("--device", metavar="D", default="cpu", help="default: cpu")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object and nothing else"
    )


def run(args: argparse.Namespace) -> int:
    """Reads the file, checks, prints.

    Args:
        args: parsed arguments.

    Returns:
        Exit code: 0 equal, 1 not equal.
    """
    from treetrain.cli.limits import limit_to_shared, select_groups
    from treetrain.cli.models import load_model, move_model
    from treetrain.cli.tokenizers import load_tokenizer
    from treetrain.progress import Progress
    from treetrain.verification.verify import verify

    progress = Progress()
    progress(f"reading {args.file}")
    tokenizer = _tokenizer(args, load_tokenizer)
    samples, reading = read_file(args, tokenizer)
    notes = reading.notes()
    samples, note = select_groups(samples, args.group)
    notes += note
    samples, note = limit_to_shared(samples, args.limit_tokens)
    notes += note
    progress.wipe()
    for line in notes:
        print(f"note: {line}", file=sys.stderr)
    groups = len({sample.group for sample in samples})
    progress(
        f"{len(samples)} sequences of {groups} groups, {sum(map(len, samples)):,} flat tokens: one "
        f"step over each alone, one on trees, then single tokens altered to find leaks"
    )
    progress(f"loading the model {args.model}")
    model = load_model(
        args.model,
        dtype=args.dtype,
        attention=args.attention,
        vocabulary=_vocabulary(samples, tokenizer),
        positions=max(map(len, samples)),
    )
    move_model(model, args.device)
    report = verify(
        model,
        samples,
        args.reduction,
        backend=args.backend,
        max_tokens=args.max_tokens,
        raise_on_difference=False,
        on_progress=progress,
    )
    progress.wipe()
    if args.json:
        print(json.dumps({**report.to_dict(), "model": args.model, "notes": notes}))
    else:
        print(report)
    return EXIT_EQUAL if report.equal else EXIT_NOT_EQUAL


def _tokenizer(args: argparse.Namespace, load: Any) -> Any:
    """The tokenizer that was named, or the model's own where it has one."""
    if args.tokenizer is not None:
        return load(args.tokenizer)
    if args.model.startswith("tiny:"):
        return None
    try:
        return load(args.model)
    except ValueError as error:
        # Rows of token ids need none; rows of text will ask for it by name.
        print(f"note: no tokenizer of the model was found: {error}", file=sys.stderr)
        return None


def _vocabulary(samples: list[Sample], tokenizer: Any) -> int:
    largest = max((int(sample.tokens.max()) for sample in samples if len(sample)), default=0)
    return max(largest + 1, 0 if tokenizer is None else len(tokenizer))
