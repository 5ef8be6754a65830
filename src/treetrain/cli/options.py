"""Options that several verbs have alike; those of a file that is read are in `reading`."""

from __future__ import annotations

import argparse


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """Adds `--json`.

    Args:
        parser: parser of a verb that prints its result.
    """
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object and nothing else"
    )


def add_dtype_option(parser: argparse.ArgumentParser) -> None:
    """Adds `--dtype`.

    Args:
        parser: parser of a verb that makes or measures a model.
    """
    parser.add_argument(
        "--dtype",
        choices=("float32", "float64", "bfloat16"),
        default="float32",
        help="dtype of weights and computation (default: float32)",
    )
