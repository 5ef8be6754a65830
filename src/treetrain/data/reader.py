"""One pass over a file of rows: sequences as they come, every row accounted for in a report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from treetrain.data.chat import Tools
from treetrain.data.containers import RawRow, read_rows
from treetrain.data.expand import STORED, Expander
from treetrain.data.fields import as_object, check_schema, check_text, ignored_fields
from treetrain.data.formats import parse_row
from treetrain.data.report import ReadReport
from treetrain.data.sample import Sample
from treetrain.data.text_files import read_json
from treetrain.data.tree_file import is_tree_file, iter_tree_file

TOOLS_BESIDE = "tools.json"


@dataclass
class Reader:
    """How a file is read.

    Attributes:
        path: the file or folder.
        expander: makes sequences of rows.
        select: values that fields of a row must have.
        split: which split of a folder that has several.
        skip_bad_rows: whether wrong rows are skipped and listed in the report.
        report: counts, added to.
    """

    path: Path
    expander: Expander
    select: Mapping[str, str]
    split: str | None
    skip_bad_rows: bool
    report: ReadReport = field(repr=False)

    def samples(self) -> Iterator[Sample]:
        """Reads the file.

        Yields:
            The sequences in the order of the file; one row's at a time are held.

        Raises:
            ValueError: a row is wrong and wrong rows are not skipped, or the file gives no
                sequence.
            TypeError: a row has entries of another type, and wrong rows are not skipped.
        """
        expander = self.expander
        if self.path.is_file() and is_tree_file(self.path):
            yield from self._stored_samples()
            return
        for row in read_rows(self.path, self.split):
            self.report.rows += 1
            # Counts of a row that turns out wrong are not added, nor is the watch told of it.
            expander.report = ReadReport(str(self.path))
            expander.seen = []
            try:
                samples = self._told_samples(row)
            except (ValueError, TypeError) as error:
                if not self.skip_bad_rows:
                    raise
                self.report.skipped.append(str(error))
                continue
            self.report.add(expander.report)
            expander.tell_watch()
            yield from samples
        if not self.report.sequences:
            raise ValueError(self._say_empty())
        self._finish()

    def _stored_samples(self) -> Iterator[Sample]:
        """Reads a tree file, of which each sequence counts as a row; none can be skipped."""
        if self.split is not None:
            raise ValueError(f"split must be left out for a file, got {self.split!r}")
        expander = self.expander
        expander.report = self.report
        for index, sample in enumerate(iter_tree_file(self.path)):
            self.report.rows += 1
            names = {"group": sample.group, "trajectory_id": sample.trajectory}
            place = sample.source or f"{self.path.name}: sequence {index}"
            if self.select and not _is_selected(names, self.select, place):
                self.report.not_selected += 1
                continue
            expander.see_stored(sample, place)
            expander.tell_watch()
            self.report.sequences += 1
            self.report.untrained += not sample.weights[1:].any()
            yield sample
        if not self.report.sequences:
            raise ValueError(self._say_empty())
        self._finish()

    def _told_samples(self, row: RawRow) -> list[Sample]:
        try:
            return self._row_samples(row)
        # Checks, templates and messages go as deep as a row is nested.
        except RecursionError as error:
            raise ValueError(f"{row.source}: must be nested less deeply") from error

    def _row_samples(self, row: RawRow) -> list[Sample]:
        counts = self.expander.report
        value = row.load()
        if self.select and not _is_selected(value, self.select, row.source):
            counts.not_selected += 1
            return []
        samples: list[Sample] = []
        for checked, fields, place in parse_row(value, row.source):
            counts.ignored_fields.update(ignored_fields(checked))
            samples += self.expander.samples(checked, fields, place)
        counts.sequences += len(samples)
        counts.untrained += sum(not sample.weights[1:].any() for sample in samples)
        return samples

    def _say_empty(self) -> str:
        hint = f" selected by {dict(self.select)}" if self.select else ""
        skipped = self.report.skipped
        wrong = f"; {len(skipped)} are wrong, the first: {skipped[0]}" if skipped else ""
        return (
            f"{self.path}: the file must give at least one sequence, got none of "
            f"{self.report.rows} rows{hint}{wrong}"
        )

    def _finish(self) -> None:
        report, chat = self.report, self.expander.chat
        kinds = report.kinds
        chatting = kinds.total() - sum(
            kinds[name] for name in ("TokenRow", "TextRow", "RecordedRow", "StepRow", STORED)
        )
        if chatting == kinds["TreeRow"]:
            # Nothing that was read could have used them.
            report.tools_file = None
        report.no_closing = bool(chatting and chat is not None and not chat.closing.strip())


def read_tools(tools: str | Path | Tools | None, beside: Path) -> tuple[Tools | None, str | None]:
    """Reads schemas of tools.

    Args:
        tools: the schemas, or their file; None: the file beside the data, if there is one.
        beside: that file.

    Returns:
        The schemas or None, and the file that they were read from or None.

    Raises:
        ValueError: they are no schemas, or the file is no JSON list of them.
    """
    if tools is None:
        if not beside.is_file():
            return None, None
        tools = beside
    if not isinstance(tools, (str, Path)):
        return _checked_schemas(tools, "tools"), None
    schemas = read_json(Path(tools))
    if not _is_list_of_objects(schemas):
        raise ValueError(f"{tools}: must be a JSON list of tool schemas, got something else")
    return _checked_schemas(schemas, str(tools)), str(tools)


def _checked_schemas(schemas: Tools, source: str) -> Tools:
    for index, schema in enumerate(schemas):
        place = f"{source}[{index}]"
        try:
            check_schema(schema)
        except ValueError as error:
            raise ValueError(f"{place}: {error}, got {schema!r:.60}") from error
        try:
            for name, value in schema.items():
                check_text(value, place, name)
        except RecursionError as error:
            raise ValueError(f"{place}: must be nested less deeply") from error
    return schemas


def _is_list_of_objects(value: Any) -> bool:
    if not isinstance(value, list):
        return False
    return all(isinstance(entry, dict) for entry in cast(list[Any], value))


def _is_selected(row: Any, select: Mapping[str, str], source: str) -> bool:
    fields = as_object(row, source)
    for name, value in select.items():
        if name not in fields:
            raise ValueError(
                f"{source}: field '{name}' is needed to select rows, got the fields "
                f"{sorted(fields)}"
            )
        if str(fields[name]) != value:
            return False
    return True
