from __future__ import annotations

from pathlib import Path
from typing import Any

from treetrain.data.report import ReadReport
from treetrain.data.rows import read_samples
from treetrain.data.sample import Sample


def read_counted(path: Path, **arguments: Any) -> tuple[list[Sample], ReadReport]:
    """The sequences of a file, and the counts."""
    report = ReadReport(str(path))
    return read_samples(path, report, **arguments), report
