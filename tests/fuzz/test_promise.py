from __future__ import annotations

import dataclasses
import json

import pytest
from tests.fuzz.promise import BrokenPromiseError, attempt, check_command, check_rows

from treetrain.data import reader
from treetrain.data.reader import Reader

LINES = [json.dumps({"input_ids": [1, token]}).encode() for token in (2, 3, -4, 5)]
NAMES = ("data.jsonl",)


@pytest.fixture
def path(tmp_path):
    (tmp_path / "data.jsonl").write_bytes(b"\n".join(LINES))
    return tmp_path / "data.jsonl"


def check(path):
    return check_rows(path, {}, names=NAMES, rows=len(LINES), lines=LINES)


def test_a_file_is_accounted_for(path):
    outcome = check(path)
    assert (outcome.told, outcome.rows, outcome.skipped) == (None, 3, 1)


def test_a_row_that_is_lost_breaks_the_promise(path, monkeypatch):
    read = reader.read_rows
    monkeypatch.setattr(reader, "read_rows", lambda *words: list(read(*words))[:-1])
    with pytest.raises(BrokenPromiseError, match="3 rows counted, there are 4"):
        check(path)


def test_a_row_that_is_counted_and_gives_nothing_breaks_it(path, monkeypatch):
    make = Reader._row_samples

    def forget(self, row):
        return [] if row.source == "data.jsonl:2" else make(self, row)

    monkeypatch.setattr(Reader, "_row_samples", forget)
    with pytest.raises(BrokenPromiseError, match="2 kinds of 3 rows"):
        check(path)


def test_a_row_that_changes_with_those_before_it_breaks_it(path, monkeypatch):
    make = Reader._row_samples

    def mix(self, row):
        samples = make(self, row)
        if self.path != path or self.report.rows != 2:
            return samples
        return [dataclasses.replace(one, tokens=one.tokens[::-1]) for one in samples]

    monkeypatch.setattr(Reader, "_row_samples", mix)
    with pytest.raises(BrokenPromiseError, match="other sequences alone than together"):
        check(path)


@pytest.mark.parametrize(
    ("error", "message"),
    [(KeyError("a"), "KeyError: 'a'"), (ValueError("no row"), "names none of .*: no row")],
)
def test_an_error_of_another_type_or_without_a_name_breaks_it(error, message):
    def fail():
        raise error

    with pytest.raises(BrokenPromiseError, match=message):
        attempt(fail, NAMES)
    assert attempt(lambda: 3, NAMES) == (3, None)


def test_a_command_that_says_something_else_breaks_it(path):
    check_command(path, ["--skip-bad-rows"], NAMES, told=False)
    check_command(path, [], NAMES, told=True)
    with pytest.raises(BrokenPromiseError, match="exit code 0"):
        check_command(path, ["--skip-bad-rows"], NAMES, told=True)
    with pytest.raises(BrokenPromiseError, match="names none of"):
        check_command(path, [], ("other.jsonl",), told=True)
