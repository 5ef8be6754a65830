"""`treetrain doctor`: what is installed, which devices and backends work, and what to do."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treetrain.cli.findings import Finding

EXIT_WELL, EXIT_BROKEN = 0, 1

MARKS = {"ok": "ok", "missing": "-", "broken": "BROKEN"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments: none of its own.

    Args:
        parser: the verb's own parser.
    """


def run(args: argparse.Namespace) -> int:
    """Looks, and prints what it found.

    Args:
        args: parsed arguments.

    Returns:
        Exit code: 0 where everything that every use needs works, 1 where something does not.
    """
    from treetrain.cli.findings import find_all
    from treetrain.progress import Progress

    progress = Progress()
    found: list[Finding] = []
    if not args.json:
        progress("trying packages, devices and backends")
    for finding in find_all():
        if not args.json:
            progress.wipe()
            _print(finding, heading=not found or found[-1].kind != finding.kind)
        found.append(finding)
    broken = [finding.name for finding in found if finding.state == "broken"]
    if args.json:
        print(json.dumps({"ok": not broken, "findings": [asdict(finding) for finding in found]}))
    else:
        missing = sum(finding.state == "missing" for finding in found)
        print()
        print(
            f"broken: {', '.join(broken)}"
            if broken
            else f"all well: everything that every use needs works; {missing} optional missing"
        )
    return EXIT_BROKEN if broken else EXIT_WELL


def _print(finding: Finding, *, heading: bool) -> None:
    if heading:
        print(f"{finding.kind}s")
    print(f"  {MARKS[finding.state]:<7}{finding.name:<20}{finding.found}", flush=True)
    if finding.fix is not None:
        print(f"{'':<29}fix: {finding.fix}", flush=True)
