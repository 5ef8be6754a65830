"""`treetrain verify`: checks that trees equal separate sequences on your model and your data.

Without data, sequences are made for the model.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from treetrain.attention.names import BACKEND_NAMES, check_backend
from treetrain.cli.options import add_dtype_option
from treetrain.cli.reading import add_group_option, add_reading_arguments, read_groups
from treetrain.wording import say_count

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from treetrain.data.sample import Sample
    from treetrain.progress import Progress

EXIT_EQUAL = 0
EXIT_NOT_EQUAL = 1
#: Longest sequence of a tiny model that no file decides, tokens.
OWN_POSITIONS = 16_384
REDUCTIONS = ("path_mean", "sequence_mean", "token_mean", "trajectory_mean", "sum")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `treetrain verify`.

    Args:
        parser: parser of this verb.
    """
    add_reading_arguments(parser, without="sequences are made for the model where it is left out")
    parser.add_argument(
        "--model",
        metavar="M",
        required=True,
        help="folder, .gguf file, 'smollm2', 'tiny:TYPE' (random weights, for example tiny:llama) "
        "or a model's name",
    )
    add_dtype_option(parser)
    parser.add_argument(
        "--reduction",
        choices=REDUCTIONS,
        default="path_mean",
        help="reduction of the loss that is compared (default: path_mean)",
    )
    add_group_option(parser)
    parser.add_argument(
        "--limit-tokens",
        metavar="N",
        type=int,
        help="whole sequences up to N flat tokens, first those that share a prefix and branch; of "
        "sequences made for the model, those beyond its windows as far as they fit",
    )
    parser.add_argument(
        "--max-tokens",
        metavar="N",
        type=int,
        help="tree tokens of one packed row (default: everything in one row); a larger tree is cut "
        "into partitions of that size, on one dense mask into rows of whole sequences",
    )
    parser.add_argument(
        "--backend",
        metavar="B",
        default=BACKEND_NAMES[0],
        help=f"attention backend: {', '.join(BACKEND_NAMES[1:])} (default: {BACKEND_NAMES[0]})",
    )
    parser.add_argument(
        "--attention",
        choices=("sdpa", "eager"),
        help="attention implementation of the plain model (default: transformers' choice)",
    )
    parser.add_argument("--device", metavar="D", default="cpu", help="default: cpu")


def run(args: argparse.Namespace) -> int:
    """Checks the model, reads the file or makes sequences for the model, checks them, prints.

    Args:
        args: parsed arguments.

    Returns:
        Exit code: 0 equal, 1 not equal.
    """
    from treetrain.cli.configs import check_source
    from treetrain.progress import Progress

    check_backend(args.backend)
    _check_file(args)
    progress = Progress()
    progress(f"checking the model {args.model}")
    # What a name or a config can tell is told before rows are read and weights loaded.
    check_source(args.model, attention=args.attention)
    from treetrain.cli.models import load_model, move_model
    from treetrain.cli.tokenizers import find_tokenizer
    from treetrain.models.prepare import prepare
    from treetrain.verification.verify import verify

    tokenizer = None if args.file is None else find_tokenizer(args.tokenizer, args.model)
    samples, notes = ([], []) if args.file is None else _read(args, tokenizer, progress)
    progress(f"loading the model {args.model}")
    model = load_model(
        args.model,
        dtype=args.dtype,
        attention=args.attention,
        vocabulary=_vocabulary(samples, tokenizer),
        positions=max(map(len, samples), default=OWN_POSITIONS),
    )
    move_model(model, args.device)
    prepare(model, args.backend)
    if args.file is None:
        samples, notes = _make(model, args.limit_tokens)
    notes += _note_dropout(model)
    progress.wipe()
    for line in notes:
        print(f"note: {line}", file=sys.stderr)
    groups = len({sample.group for sample in samples})
    progress(
        f"{say_count(len(samples), 'sequence')} of {say_count(groups, 'group')}, "
        f"{sum(map(len, samples)):,} flat tokens: one step over each alone, one on trees, then "
        "single tokens altered to find leaks"
    )
    report = verify(
        model,
        samples,
        args.reduction,
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


def _check_file(args: argparse.Namespace) -> None:
    """Refuses a file that is not there, and options that mean nothing without one."""
    if args.file is not None:
        # Asked for here, so that a wrong name is told before the model is looked at.
        args.file.stat()
        return
    given = [
        option
        for option, value in (
            ("--group", args.group),
            ("--select", args.select),
            ("--tools", args.tools),
            ("--chat-template", args.chat_template),
            ("--template-variable", args.template_variable),
            ("--expand per_step", args.expand != "whole"),
            ("--split", args.split),
            ("--skip-bad-rows", args.skip_bad_rows),
        )
        if value
    ]
    if given:
        raise ValueError(
            f"{given[0]} must come with FILE, whose rows it is about, got none; without FILE "
            "sequences are made for the model"
        )


def _read(
    args: argparse.Namespace, tokenizer: Any, progress: Progress
) -> tuple[list[Sample], list[str]]:
    """The sequences of the file that are asked for, and what is to be known of them."""
    from treetrain.cli.limits import limit_to_shared

    progress(f"reading {args.file}")
    samples, notes = read_groups(args, tokenizer)
    samples, note = limit_to_shared(samples, args.limit_tokens)
    return samples, notes + note


def _make(model: PreTrainedModel, limit: int | None) -> tuple[list[Sample], list[str]]:
    """Sequences made for the model, and what they cost."""
    from treetrain.verification.own_samples import make_samples_for

    samples = make_samples_for(model, limit_tokens=limit)
    longest = max(map(len, samples))
    note = (
        f"no FILE: {say_count(len(samples), 'sequence')} made for the model, "
        f"{sum(map(len, samples)):,} flat tokens, the longest {longest:,}; the check is a training "
        "step over each, and a step and eleven forward passes over their trees"
        + ("; --limit-tokens N takes fewer" if limit is None else "")
    )
    return samples, [note]


def _note_dropout(model: PreTrainedModel) -> list[str]:
    """What the config would drop in training, which this check runs without."""
    rates = {
        name: rate
        for name, rate in model.config.get_text_config().to_dict().items()
        if "drop" in name and isinstance(rate, float) and rate > 0
    }
    if not rates:
        return []
    named = ", ".join(f"{name}={rate}" for name, rate in rates.items())
    return [
        f"the config names {named}: this check runs without dropout, and training on trees refuses "
        "it where it is used; set it to 0"
    ]


def _vocabulary(samples: list[Sample], tokenizer: Any) -> int | None:
    if not samples and tokenizer is None:
        return None
    largest = max((int(sample.tokens.max()) for sample in samples if len(sample)), default=0)
    return max(largest + 1, 0 if tokenizer is None else len(tokenizer))
