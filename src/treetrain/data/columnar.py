"""Rows of columnar files: parquet, and folders that `datasets` saved; read with pyarrow.

`datasets` itself is not needed. A column that a row does not have is null there, and so is a field
that some other row's object has: nulls are left out, as if they had not been written.

Source: the arrow files and `state.json` that `datasets.Dataset.save_to_disk` writes, and its
`dataset_dict.json` where there are several splits.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from treetrain.data.text_files import read_json

PARQUET = b"PAR1"
#: Rows that are decoded at a time.
BATCH_ROWS = 64
#: What an arrow stream ends with; one without it breaks off, and pyarrow does not say so.
STREAM_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"


def read_parquet(path: Path) -> Iterator[tuple[Any, str]]:
    """Reads a parquet file.

    Args:
        path: the file.

    Yields:
        Each row and its source, the file's name and the row's index.

    Raises:
        ValueError: pyarrow is missing, or the file is broken.
    """
    pyarrow = _load_pyarrow(path)
    with _told(pyarrow, path), pyarrow.parquet.ParquetFile(path) as file:
        first = 0
        for group in range(file.num_row_groups):
            # Asked for all groups at once, it reads ahead and keeps what it read.
            batches = file.iter_batches(batch_size=BATCH_ROWS, row_groups=[group])
            for row, place in _rows(batches, path.name, first):
                first += 1
                yield row, place
        if first != file.metadata.num_rows:
            raise ValueError(
                f"{path.name}: must hold the {file.metadata.num_rows} rows that its end counts, "
                f"got {first}"
            )


def read_folder(path: Path, split: str | None) -> Iterator[tuple[Any, str]]:
    """Reads a folder that `datasets` saved.

    Args:
        path: the folder.
        split: which of several splits; None where there is one.

    Yields:
        Each row and its source, the folder's name and the row's index.

    Raises:
        ValueError: the folder is no such folder, the split is missing or unknown, pyarrow is
            missing, or a file is broken.
    """
    splits = path / "dataset_dict.json"
    if splits.is_file():
        names = _read_names(splits, "splits")
        if split is None and len(names) == 1:
            split = names[0]
        if split not in names:
            raise ValueError(
                f"split must be one of {', '.join(names)}, those of {path}, got {split}; give "
                f"split=..."
            )
        path = path / split
    elif split is not None:
        raise ValueError(f"split must be left out for {path}, which has only one, got {split!r}")
    state = path / "state.json"
    if not state.is_file():
        raise ValueError(
            f"{path}: a folder must be one that datasets.save_to_disk wrote, with state.json or "
            f"dataset_dict.json, got neither"
        )
    files = _read_names(state, "_data_files")
    pyarrow = _load_pyarrow(path)
    first = 0
    for name in files:
        file = path / name
        if not file.is_file():
            raise ValueError(f"{state}: field '_data_files' names {name}, which is not there")
        with _told(pyarrow, file), pyarrow.memory_map(str(file)) as source:
            # Streams are what save_to_disk writes; a file has this mark at its start.
            is_file = source.read(6) == b"ARROW1"
            if not is_file:
                source.seek(max(0, source.size() - len(STREAM_END)))
                if source.read(len(STREAM_END)) != STREAM_END:
                    raise ValueError(f"{file}: must end as an arrow stream does, but breaks off")
            source.seek(0)
            if is_file:
                reader = pyarrow.ipc.open_file(source)
                batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
            else:
                batches = iter(pyarrow.ipc.open_stream(source))
            batches = map(_validated, batches)
            for row, place in _rows(batches, path.name, first):
                first += 1
                yield row, place


def _read_names(path: Path, field: str) -> list[str]:
    value = read_json(path)
    found = cast(dict[str, Any], value).get(field) if isinstance(value, dict) else None
    if isinstance(found, list):
        entries = cast(list[Any], found)
        names = [_file_name(one) if field == "_data_files" else one for one in entries]
        if all(isinstance(name, str) for name in names):
            return names
    raise ValueError(f"{path}: field '{field}' must be a list of names, got {found!r:.60}")


def _file_name(entry: Any) -> Any:
    return cast(dict[str, Any], entry).get("filename") if isinstance(entry, dict) else None


def _validated(batch: Any) -> Any:
    # Arrow reads what offsets and lengths say, wherever that leads; parquet is decoded.
    batch.validate(full=True)
    return batch


def _rows(batches: Iterator[Any], name: str, first: int) -> Iterator[tuple[Any, str]]:
    for batch in batches:
        for start in range(0, batch.num_rows, BATCH_ROWS):
            for row in _to_rows(batch.slice(start, BATCH_ROWS), f"{name}:row {first}"):
                yield _without_nulls(row), f"{name}:row {first}"
                first += 1


def _to_rows(batch: Any, source: str) -> list[Any]:
    try:
        return batch.to_pylist()
    # Text that is no UTF-8, and times beyond those of Python.
    except (ValueError, OverflowError) as error:
        raise ValueError(
            f"{source}: this row or one of the {batch.num_rows - 1} after it must hold values that "
            f"Python can hold: {error}"
        ) from error


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        items = cast(dict[str, Any], value).items()
        return {name: _without_nulls(one) for name, one in items if one is not None}
    if isinstance(value, list):
        entries = cast(list[Any], value)
        # Columns of numbers are long, and hold no objects.
        if isinstance(next((one for one in entries if one is not None), None), dict | list):
            return [_without_nulls(one) for one in entries]
        return entries
    return value


def _load_pyarrow(path: Path) -> Any:
    try:
        # It says little of its types; they are checked where rows are.
        pyarrow: Any = import_module("pyarrow")
        for part in ("ipc", "parquet"):
            import_module(f"pyarrow.{part}")
    except ImportError as error:
        raise ValueError(
            f"{path}: parquet files and folders of datasets need pyarrow; pip install "
            f"'treetrain[parquet]'"
        ) from error
    return pyarrow


@contextmanager
def _told(pyarrow: Any, path: Path) -> Generator[None]:
    """Names the file where pyarrow fails."""
    try:
        yield
    # Names of columns are decoded by pyarrow, which leaves this one to Python.
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path.name}: must be a file that pyarrow reads: {error}") from error
