from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest
from tests.data.counted import read_counted

from treetrain.data import columnar
from treetrain.data.containers import read_rows
from treetrain.data.rows import read_samples

ROWS = [{"input_ids": list(range(n + 1)), "group": f"g{n % 3}"} for n in range(200)]


def save_folder(folder: Path, rows: list[Any], files: int = 2, *, stream: bool = True) -> None:
    """Writes what `datasets.Dataset.save_to_disk` writes."""
    folder.mkdir(parents=True)
    table = pyarrow.Table.from_pylist(rows)
    names = [f"data-{index:05d}-of-{files:05d}.arrow" for index in range(files)]
    size = -(-len(rows) // files)
    opened = pyarrow.ipc.new_stream if stream else pyarrow.ipc.new_file
    for index, name in enumerate(names):
        with opened(str(folder / name), table.schema) as writer:
            writer.write_table(table.slice(index * size, size), max_chunksize=70)
    state = {"_data_files": [{"filename": name} for name in names], "_split": None}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")


def values(path: Path, split: str | None = None) -> list[Any]:
    return [row.load() for row in read_rows(path, split)]


def test_a_parquet_file_is_its_rows_whatever_it_is_called(tmp_path):
    path = tmp_path / "data"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path, row_group_size=70)
    assert values(path) == ROWS
    samples = read_samples(path)
    assert [sample.tokens.tolist() for sample in samples] == [row["input_ids"] for row in ROWS]
    assert samples[131].source == "data:row 131"


def test_of_a_parquet_file_one_row_group_is_in_memory(tmp_path):
    peaks: list[int] = []
    for groups in (2, 20):
        path = tmp_path / f"{groups}.parquet"
        rows = [{"input_ids": list(range(2000)), "n": n} for n in range(50 * groups)]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=50)
        del rows
        before = pyarrow.total_allocated_bytes()
        peaks.append(max(pyarrow.total_allocated_bytes() - before for _ in read_rows(path)))
    # A row group is 800,000 bytes.
    assert peaks[1] < peaks[0] + 400_000


@pytest.mark.parametrize("stream", [True, False])
def test_a_folder_of_datasets_is_its_rows(tmp_path, stream):
    save_folder(tmp_path / "set", ROWS, stream=stream)
    assert values(tmp_path / "set") == ROWS
    assert [row.source for row in read_rows(tmp_path / "set")][150] == "set:row 150"


def test_a_split_is_chosen_by_name(tmp_path):
    for name, rows in (("train", ROWS[:5]), ("test", ROWS[5:7])):
        save_folder(tmp_path / "set" / name, rows, 1)
    (tmp_path / "set" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert values(tmp_path / "set", "test") == ROWS[5:7]
    for split in (None, "dev"):
        with pytest.raises(ValueError, match=f"split must be one of train, test.*got {split}"):
            values(tmp_path / "set", split)
    with pytest.raises(ValueError, match=r"split must be left out for .*only one"):
        values(tmp_path / "set" / "test", "test")


def test_what_a_row_does_not_have_is_left_out_of_it(tmp_path):
    path = tmp_path / "data.parquet"
    rows = [
        {"messages": [{"role": "user", "content": "q"}]},
        {"messages": [{"role": "assistant", "tool_calls": [{"name": "f"}]}], "group": "g"},
        {"input_ids": [1]},
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    # Columns of the first row alone are written where pyarrow infers them.
    schema = pyarrow.unify_schemas(
        [pyarrow.Table.from_pylist([row]).schema for row in rows if "input_ids" in row]
        + [pyarrow.Table.from_pylist(rows[:2]).schema]
    )
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema), path)
    found = values(path)
    assert found[0] == rows[0]
    assert found[2] == rows[2]


def test_wrong_rows_of_columns_are_named_and_can_be_skipped(tmp_path):
    path = tmp_path / "data.parquet"
    rows = [{"input_ids": [1, 2], "loss_mask": [1]}, {"input_ids": [1, 2], "loss_mask": [1, 1]}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    with pytest.raises(ValueError, match=r"^data.parquet:row 0: field 'loss_mask' has 1 entries"):
        read_samples(path)
    samples, report = read_counted(path, skip_bad_rows=True)
    assert len(samples) == 1
    assert (report.rows, report.rows_read, len(report.skipped)) == (2, 1, 1)


def test_broken_files_and_folders_are_named(tmp_path):
    path = tmp_path / "data.parquet"
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(ValueError, match=r"^data.parquet: must be a file that pyarrow reads"):
        values(path)
    with pytest.raises(ValueError, match=r"a folder must be one that datasets.save_to_disk wrote"):
        values(tmp_path)
    save_folder(tmp_path / "set", ROWS, 1)
    [file] = (tmp_path / "set").glob("*.arrow")
    whole = file.read_bytes()
    for length in (0, 3, len(whole) // 2, len(whole) - 8):
        file.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"data-00000-of-00001.arrow: must "):
            values(tmp_path / "set")
    file.write_bytes(whole[: len(whole) // 2] + whole[-8:])
    with pytest.raises(ValueError, match="must be a file that pyarrow reads"):
        values(tmp_path / "set")
    file.unlink()
    with pytest.raises(ValueError, match=r"state.json: field '_data_files' names data-00000"):
        values(tmp_path / "set")
    (tmp_path / "set" / "state.json").write_text('{"_data_files": 3}')
    with pytest.raises(ValueError, match="field '_data_files' must be a list of names"):
        values(tmp_path / "set")


def test_text_that_is_no_utf8_is_named_by_its_rows(tmp_path):
    path = tmp_path / "data.parquet"
    wrong = pyarrow.array([b"\xff"], pyarrow.binary()).view(pyarrow.string())
    pyarrow.parquet.write_table(pyarrow.table({"prompt": wrong}), path)
    with pytest.raises(ValueError, match=r"^data.parquet:row 0: this row or one of the 0 after"):
        values(path)


def test_a_file_has_no_splits(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text("{}")
    with pytest.raises(ValueError, match="split must be left out for a file, got 'train'"):
        values(path, "train")


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    path = tmp_path / "data.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match=r"need pyarrow; pip install 'treetrain\[parquet\]'"):
        values(path)


def test_damage_inside_a_file_is_named_and_never_read_as_rows(tmp_path):
    save_folder(tmp_path / "set", [{"prompt": "one"}, {"prompt": "two"}], 1)
    [file] = (tmp_path / "set").glob("*.arrow")
    whole = file.read_bytes()
    # Where the second text ends: far beyond the texts.
    ends = struct.pack("<iii", 0, 3, 6)
    assert whole.count(ends) == 1
    file.write_bytes(whole.replace(ends, struct.pack("<iii", 0, 3, 60_000_000)))
    with pytest.raises(ValueError, match=r"data-00000-of-00001.arrow: must be a file that pyarrow"):
        values(tmp_path / "set")
    (tmp_path / "set" / "state.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match=r"state.json: must be nested less deeply"):
        values(tmp_path / "set")


def test_a_name_of_a_column_that_is_no_text_is_told_by_file(tmp_path):
    path = tmp_path / "data.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"prompt": ["a"]}), path)
    path.write_bytes(path.read_bytes().replace(b"prompt", b"pro\xffpt"))
    with pytest.raises(ValueError, match=r"^data.parquet: must be a file that pyarrow reads"):
        values(path)


def test_a_parquet_file_has_as_many_rows_as_its_end_counts(tmp_path, monkeypatch):
    path = tmp_path / "data.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    monkeypatch.setattr(columnar, "_rows", lambda *_: iter([({}, "data.parquet:row 0")]))
    with pytest.raises(ValueError, match=r"must hold the \d+ rows that its end counts, got 1"):
        values(path)
