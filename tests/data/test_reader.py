from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.data.counted import read_counted

from treetrain.data.report import SKIPPED_SHOWN, ReadReport
from treetrain.data.rows import iter_samples, read_samples

GOOD = {"input_ids": [1, 2, 3]}
WRONG = [
    '{"input_ids": [1, "2"]}',
    '{"input_ids": [1, 2], "loss_mask": [1]}',
    '{"input_ids": [1',
    '{"nothing": 1}',
    "3",
    '{"messages": [{"role": "user", "content": "q"}]}',
    '{"samples": [{"input_ids": [1]}, {"input_ids": [-1]}]}',
    '{"input_ids": [1], "advantage": [[1]]}',
    "\\xff",
]


def write_lines(path: Path, rows: int) -> None:
    with path.open("w") as file:
        for index in range(rows):
            file.write(json.dumps({"input_ids": [index % 7] * 300, "text": "x" * 500}) + "\n")


def write_array(path: Path, rows: int) -> None:
    with path.open("w") as file:
        for index in range(rows):
            file.write("," if index else "[")
            file.write(json.dumps({"input_ids": [index % 7] * 300, "text": "x" * 500}))
        file.write("]")


def write_parquet(path: Path, rows: int) -> None:
    values = [{"input_ids": [index % 7] * 300, "text": "x" * 500} for index in range(rows)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(values), path, row_group_size=100)


def peak_of(path: Path) -> int:
    tracemalloc.start()
    for _ in iter_samples(path):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


@pytest.mark.parametrize("write", [write_lines, write_array, write_parquet])
def test_memory_does_not_grow_with_the_file(tmp_path, write: Callable[[Path, int], None]):
    write(tmp_path / "small", 100)
    write(tmp_path / "large", 1000)
    peak_of(tmp_path / "small")
    small, large = peak_of(tmp_path / "small"), peak_of(tmp_path / "large")
    # The samples of the large file alone are five million bytes.
    assert large < small + 200_000


@given(st.lists(st.sampled_from([json.dumps(GOOD), *WRONG]), min_size=1, max_size=12))
def test_every_row_is_read_or_skipped_and_what_is_read_is_what_good_rows_give(
    tmp_path_factory, lines
):
    path = tmp_path_factory.mktemp("rows") / "data.jsonl"
    path.write_bytes("\n".join(lines).encode().replace(b"\\xff", b"\xff"))
    good = lines.count(json.dumps(GOOD))
    report = ReadReport(str(path))
    if not good:
        with pytest.raises(ValueError, match=f"got none of {len(lines)} rows; {len(lines)} are"):
            list(iter_samples(path, report, skip_bad_rows=True))
    else:
        samples = list(iter_samples(path, report, skip_bad_rows=True))
        assert len(samples) == report.sequences == good
        assert report.kinds == {"TokenRow": good}
        assert report.all_trained == good
    assert (report.rows, report.rows_read) == (len(lines), good)
    assert len(report.skipped) == len(lines) - good
    assert all(wrong.startswith("data.jsonl:") for wrong in report.skipped)


def test_the_first_wrong_row_is_an_error_unless_they_are_skipped(write_rows):
    path = write_rows(GOOD, {"input_ids": [1, -1]})
    with pytest.raises(ValueError, match=r"^data.jsonl:2: field 'input_ids\[1\]'"):
        read_samples(path)
    found = iter_samples(path)
    assert next(found).tokens.tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match=r"^data.jsonl:2: "):
        next(found)


def test_of_many_skipped_rows_the_first_are_listed_and_all_when_asked(write_rows):
    wrong = [{"input_ids": [-1]}] * (SKIPPED_SHOWN + 3)
    _, report = read_counted(write_rows(GOOD, *wrong), skip_bad_rows=True)
    notes = report.notes()
    assert f"{SKIPPED_SHOWN + 3} of {SKIPPED_SHOWN + 4} rows are wrong and were skipped" in notes
    assert sum(note.startswith("skipped data.jsonl:") for note in notes) == SKIPPED_SHOWN
    assert "skipped 3 more, all of which --json lists" in notes
    every = report.notes(every_skipped=True)
    assert sum(note.startswith("skipped data.jsonl:") for note in every) == SKIPPED_SHOWN + 3


def test_kinds_are_said_first_with_the_fields_that_show_them(write_rows):
    step: dict[str, Any] = {"prompts": [1], "responses": [2], "uid": "a"}
    _, report = read_counted(write_rows(GOOD, step, step))
    assert report.notes()[0] == (
        "rows: 1 row of token ids (input_ids); 2 per-step rows (prompts, responses; verl's names)"
    )


def test_a_file_that_breaks_off_is_an_error_even_where_rows_are_skipped(tmp_path):
    path = tmp_path / "data.json"
    path.write_text('[{"input_ids": [1]}, {"input_ids"')
    with pytest.raises(ValueError, match=r"^data.json\[1\]: an array must end with a bracket"):
        read_samples(path, skip_bad_rows=True)


@pytest.mark.parametrize("name", ["split", "skip_bad_rows", "report"])
def test_arguments_of_another_type_are_refused_before_anything_is_read(tmp_path, name):
    with pytest.raises(TypeError, match=f"^{name} must be "):
        iter_samples(tmp_path / "no file", **{name: 3})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}, True),
        ({"history": [{"role": "assistant", "content": "a"}]}, True),
        (GOOD, False),
    ],
)
def test_schemas_beside_the_file_are_named_where_rows_could_use_them(
    tmp_path, tokenizer, write_rows, row, said
):
    (tmp_path / "tools.json").write_text("[]")
    _, report = read_counted(write_rows(row), tokenizer=tokenizer)
    assert (report.tools_file == str(tmp_path / "tools.json")) is said
