"""`treetrain schema`: the JSON schema of a training configuration, for editors."""

from __future__ import annotations

import argparse
import json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `treetrain schema`: none of its own.

    Args:
        parser: parser of this verb.
    """
    parser.epilog = (
        f"{parser.epilog}\n\nBegin a configuration beside it with\n"
        "  # yaml-language-server: $schema=treetrain.schema.json"
    )


def run(args: argparse.Namespace) -> int:
    """Prints the schema.

    Args:
        args: parsed arguments.

    Returns:
        Exit code 0.
    """
    from treetrain.training.config_schema import make_schema

    print(json.dumps(make_schema(), indent=None if args.json else 2))
    return 0
