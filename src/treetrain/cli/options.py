"""The option that verbs with a model have alike; those of a file that is read are in `reading`."""

from __future__ import annotations

import argparse


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
