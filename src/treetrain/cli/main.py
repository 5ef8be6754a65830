"""The command `treetrain`: picks the verb, runs it, turns errors into exit codes.

Each verb is a file of this folder with `add_arguments(parser)` and `run(args) -> int`. Only the
verb that was asked for is imported, and the files import torch inside `run`, so that
`treetrain --help` and `treetrain inspect` answer at once.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

import treetrain
from treetrain.cli.examples import show_examples
from treetrain.cli.parser import Parser, suggest
from treetrain.errors import EquivalenceError
from treetrain.progress import Progress

VERBS = {
    "inspect": "count what sharing saves in a file of sequences, and say whether it pays",
    "verify": "check that tree training equals separate training on your model and data",
    "plan": "say how trees are cut into partitions for a model and a memory",
    "convert": "write a file of rows as a file of trees, or as rows of token ids",
    "train": "training from a configuration file, with checkpoints",
    "schema": "print the JSON schema of a training configuration, for editors",
    "doctor": "say what is installed, which devices and backends work, and how to get the rest",
    "demo": "the whole way on a built-in data set: generate, inspect, verify, measure, train, act",
}

EXIT_CODES = (
    "Exit codes: 0 done,\n1 not equal (doctor: something is broken), 2 wrong usage or input, "
    "130 interrupted."
)
EXIT_NOT_EQUAL = 1
EXIT_WRONG_INPUT = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


def build_parser(verb: str | None) -> argparse.ArgumentParser:
    """Builds the parser, with the arguments of one verb only.

    Args:
        verb: the verb whose file is imported for its arguments; None for none.

    Returns:
        The parser; its result has `verb`, and `debug` once a verb was given.
    """
    parser = Parser(
        prog="treetrain",
        description="Train language models on sequences that share prefixes.",
        epilog=show_examples("") + "\n\nVERB --help shows more. " + EXIT_CODES,
    )
    parser.add_argument("--version", action="version", version=f"treetrain {treetrain.__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, summary in VERBS.items():
        child = verbs.add_parser(name, help=summary, description=summary[0].upper() + summary[1:])
        if name == verb:
            child.epilog = show_examples(name)
            import_module(f"treetrain.cli.{name}").add_arguments(child)
            child.add_argument(
                "--json",
                action="store_true",
                help="print one JSON object on stdout and nothing else there",
            )
            child.add_argument(
                "--debug", action="store_true", help="show the traceback of an error"
            )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
        arguments: the words after `treetrain`; None for those of the process.

    Returns:
        Exit code: 0 done, 1 not equal, 2 wrong input, 130 interrupted, 141 broken pipe. Wrong usage
        leaves through SystemExit(2), as argparse has it.

    Raises:
        ModuleNotFoundError: a part of this package itself is missing.
    """
    _open_missing_streams()
    words = list(sys.argv[1:] if arguments is None else arguments)
    verb = next((word for word in words if word in VERBS), None)
    parser = build_parser(verb)
    if not words:
        parser.print_help(sys.stderr)
        parser.exit(EXIT_WRONG_INPUT)
    first = next((word for word in words if not word.startswith("-")), None)
    if first is not None and first not in VERBS:
        known = f"VERB must be one of {', '.join(VERBS)}"
        parser.error(f"{known}, got {first!r}{suggest(first, VERBS)}")
    args = parser.parse_args(words)
    run = import_module(f"treetrain.cli.{args.verb}").run
    if args.debug or os.environ.get("TREETRAIN_DEBUG", "") not in ("", "0"):
        return run(args)
    try:
        code = run(args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        _flush()
        return EXIT_BROKEN_PIPE
    except KeyboardInterrupt:
        return _tell("interrupted", EXIT_INTERRUPTED)
    except EquivalenceError as error:
        return _complain(error, EXIT_NOT_EQUAL)
    except ModuleNotFoundError as error:
        if (error.name or "treetrain").partition(".")[0] == "treetrain":
            raise
        return _complain(error, EXIT_WRONG_INPUT)
    except (ValueError, TypeError, OSError, NotImplementedError) as error:
        return _complain(error, EXIT_WRONG_INPUT)


def _complain(error: Exception, code: int) -> int:
    text = str(error)
    if isinstance(error, OSError) and error.filename is not None:
        text = f"{error.filename}: {error.strerror}"
    if isinstance(error, ModuleNotFoundError):
        text += "; treetrain doctor says what is missing and how to get it"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # What differs is a report, whose lines are figures; any other message is a sentence.
    between = "\n  " if isinstance(error, EquivalenceError) else " "
    return _tell(between.join(lines) or type(error).__name__, code)


def _tell(text: str, code: int) -> int:
    _flush()
    try:
        Progress().wipe()
        print(f"treetrain: {text}", file=sys.stderr)
    except OSError:
        pass  # a log on a full disk: the exit code is what can still be told
    _flush()
    return code


def _flush() -> None:
    """Flushes what can be written; the rest must not change the exit code at the process's end."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _open_missing_streams() -> None:
    """Opens those standard streams that a caller has closed: else files would take their places."""
    number = os.open(os.devnull, os.O_RDWR)
    while number <= 2:
        number = os.open(os.devnull, os.O_RDWR)
    os.close(number)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


if __name__ == "__main__":
    sys.exit(main())
