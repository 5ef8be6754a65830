"""`treetrain demo`: generate, inspect, verify, train and measure the built-in example.

The stages are in `treetrain.demo`; this file runs them in order and says what came out.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass

BAR = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments.

    Args:
        parser: the verb's own parser.
    """
    parser.add_argument(
        "--model",
        choices=("small", "smollm2"),
        default="small",
        help="a Llama of 3.2 M parameters from scratch (default), or SmolLM2-135M-Instruct",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of data and weights (default 0)")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs/demo"),
        metavar="DIR",
        help="folder for the data, the metrics and the trained model (default runs/demo)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object and nothing else"
    )


def run(args: argparse.Namespace) -> int:
    """Runs the demo.

    Args:
        args: the parsed arguments.

    Returns:
        0, or 1 where tree training was not equal to separate training.
    """
    return 0
