"""The report of a run, from the files in its folder and the samples it was trained on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treetrain.data.sample import Sample
from treetrain.data.text_files import read_text
from treetrain.report.draw_tree import Decode
from treetrain.report.inspection import DEFAULT_SHAPE, inspect_samples
from treetrain.report.largest import largest_trees
from treetrain.report.page import PageContent, write_page
from treetrain.report.plots import FILES, write_plots
from treetrain.report.run_metrics import read_metrics
from treetrain.report.tables import as_json
from treetrain.report.written import Check, Inspected, read_object
from treetrain.tree.metrics import ModelShape

PAGE, INSPECTION, CHECK = "report.html", "inspection.json", "check.json"
METRICS, CONFIG = "metrics.jsonl", "config.yaml"


@dataclass(frozen=True)
class WrittenReport:
    """What became of a report.

    Attributes:
        page: the page.
        plots: the plots.
        notes: what is not there, and why.
    """

    page: Path
    plots: tuple[Path, ...]
    notes: tuple[str, ...]


def write_report(
    folder: str | Path,
    samples: Sequence[Sample] = (),
    *,
    shape: ModelShape = DEFAULT_SHAPE,
    decode: Decode | None = None,
) -> WrittenReport:
    """Write `report.html`, and the plots where matplotlib is installed, into a run's folder.

    Read are `metrics.jsonl`, `config.yaml`, `check.json` (a report of `verify`) and, without
    samples, `inspection.json`; what is missing is not shown.

    Args:
        folder: the run's folder.
        samples: what the run is trained on: its trees are drawn, and its counts are written to
            `inspection.json`.
        shape: sizes of the model, for the FLOP bound.
        decode: token ids to text; None: ids are shown.

    Returns:
        What was written.

    Raises:
        ValueError: there is no such folder, or a file of it does not hold what it must; the file is
            named.
    """  # noqa: DOC502, DOC503 (the readers raise)
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"folder must be the folder of a run, got {folder}, which is none")
    notes: list[str] = []
    trees, inspection = [], None
    if samples:
        found = inspect_samples(samples, shape=shape)
        inspection = as_json(found, None, decode)
        trees = largest_trees(samples)
        text = json.dumps(inspection, default=str) + "\n"
        (folder / INSPECTION).write_text(text, encoding="utf-8")
    else:
        inspection = read_object(folder / INSPECTION, Inspected)
    lines: list[dict[str, Any]] = []
    if (folder / METRICS).exists():
        lines, notes = read_metrics(folder / METRICS)
    content = PageContent(
        title=f"Run {folder.resolve().name}",
        notes=tuple(notes),
        inspection=inspection,
        trees=trees,
        decode=decode,
        check=read_object(folder / CHECK, Check),
        steps=lines,
        config=read_text(folder / CONFIG) if (folder / CONFIG).exists() else None,
    )
    plots: list[Path] = []
    if lines:
        try:
            plots = write_plots(folder, lines)
        except ModuleNotFoundError as error:
            notes.append(f"{' and '.join(FILES)} not written: {error}")
    write_page(folder / PAGE, content)
    return WrittenReport(folder / PAGE, tuple(plots), tuple(notes))
