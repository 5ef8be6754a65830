"""Files of rows and folders of them, each a stream of rows with their place.

A row of text is handed on unread, so that a wrong one can be counted and the next one read; what
is in memory is one row, and of columnar files one row group.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treetrain.data.columnar import PARQUET, read_folder, read_parquet
from treetrain.data.json_stream import open_text, read_array, read_lines
from treetrain.data.text_files import load_json


@dataclass(frozen=True)
class RawRow:
    """A row as it stands in its file.

    Attributes:
        source: file and line, or file and index.
        text: JSON, or None where the row was not stored as text.
        value: the row, where it was not stored as text.
    """

    source: str
    text: bytes | None
    value: Any = None

    def load(self) -> Any:
        """Reads the row.

        Returns:
            What JSON gave, or the columns by name.

        Raises:
            ValueError: the text is no JSON; file and line are named.
        """  # noqa: DOC502 (load_json raises)
        return self.value if self.text is None else load_json(self.text, self.source)


def read_rows(path: Path, split: str | None = None) -> Iterator[RawRow]:
    """Reads a file or a folder row by row.

    Args:
        path: JSON lines, one JSON array or one JSON object, a parquet file, or a folder saved by
            `datasets`.
        split: which split of a folder that has several.

    Yields:
        The rows, in their order.

    Raises:
        ValueError: the file is of no such kind or breaks off, or there is no such split.
    """  # noqa: DOC502 (the readers raise)
    if path.is_dir():
        for value, source in read_folder(path, split):
            yield RawRow(source, None, value)
        return
    if split is not None:
        raise ValueError(f"split must be left out for a file, got {split!r} for {path}")
    with path.open("rb") as file:
        if file.read(len(PARQUET)) == PARQUET:
            for value, source in read_parquet(path):
                yield RawRow(source, None, value)
            return
        file.seek(0)
        reader = read_array if open_text(file) == b"[" else read_lines
        for text, source in reader(file, path):
            yield RawRow(source, text)
