from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.data.counted import read_counted
from tests.data.tree_samples import contents, sample_lists

from treetrain.data.rows import read_samples
from treetrain.data.sample import Sample
from treetrain.data.tree_file import is_tree_file, iter_tree_file, tree_lines
from treetrain.tree.build import build_prefix_tree

EXAMPLE = [
    Sample([1, 2, 3, 4, 5], [0, 0, 1, 1, 1], group="a", advantage=0.5, source="x:1"),
    Sample([9], group="b", trajectory=7),
    Sample([1, 2, 3, 6, 7], [0, 0, 0, 0.5, 0.5], group="a", advantage=[0, 1, 2, 3, 4]),
    Sample([], group="a"),
    Sample([1, 2, 3], group="a"),
]
one_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def write(folder: Path, samples: list[Sample]) -> Path:
    path = folder / "t.tree.jsonl"
    lines = [line for line, _ in tree_lines(samples, build_prefix_tree)]
    path.write_text("".join(lines), encoding="utf-8")
    return path


def edit(path: Path, number: int, change: Any) -> None:
    """Changes the object on one line, counted from 1; None takes the line out."""
    lines = path.read_text(encoding="utf-8").splitlines()
    if change is None:
        del lines[number - 1]
    else:
        value = json.loads(lines[number - 1])
        change(value)
        lines[number - 1] = json.dumps(value)
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


@one_folder
@given(sample_lists())
def test_every_sample_comes_back_byte_for_byte_and_in_order(tmp_path, samples):
    found = read_samples(write(tmp_path, samples))
    assert [contents(one) for one in found] == [contents(one) for one in samples]


@one_folder
@given(sample_lists())
def test_writing_what_was_read_gives_the_same_file(tmp_path, samples):
    path = write(tmp_path, samples)
    first = path.read_bytes()
    assert write(tmp_path, read_samples(path)).read_bytes() == first


def test_every_token_of_a_tree_stands_once(tmp_path):
    lines = write(tmp_path, EXAMPLE).read_text().splitlines()
    assert json.loads(lines[0]) == {"format": "treetrain.tree", "version": 1}
    tree = json.loads(lines[1])
    assert tree["group"] == "a"
    assert tree["nodes"] == [[1, 2, 3], [4, 5], [6, 7]]
    assert tree["parents"] == [-1, 0, 0]
    assert [one["index"] for one in tree["sequences"]] == [0, 2, 3, 4]
    assert [one["end"] for one in tree["sequences"]] == [1, 2, -1, 0]
    assert tree["sequences"][0]["weights"] == [[0.0, 2], [1.0, 3]]
    assert json.loads(lines[3]) == {"trees": 2, "sequences": 5}


def test_counts_are_those_of_the_trees():
    *_, (_, counts) = tree_lines(EXAMPLE, build_prefix_tree)
    assert (counts.trees, counts.sequences) == (2, 5)
    assert (counts.tree_tokens, counts.flat_tokens) == (8, 14)


def test_reading_counts_sequences_and_selects_them(tmp_path):
    path = write(tmp_path, EXAMPLE)
    samples, report = read_counted(path, select={"group": "a"})
    assert (report.rows, report.not_selected, report.sequences) == (5, 1, 4)
    assert [len(sample) for sample in samples] == [5, 5, 0, 3]
    with pytest.raises(ValueError, match="field 'kind' is needed to select rows"):
        read_samples(path, select={"kind": "a"})


def test_a_sequence_is_given_as_soon_as_its_turn_comes(tmp_path):
    path = write(tmp_path, EXAMPLE)
    with path.open("a") as file:
        file.write("no JSON\n")
    found = iter_tree_file(path)
    assert [contents(next(found)) for _ in EXAMPLE] == [contents(one) for one in EXAMPLE]
    with pytest.raises(ValueError, match=r"^t\.tree\.jsonl:5: must be JSON"):
        next(found)


def test_trees_of_groups_that_stood_together_are_read_one_after_the_other(tmp_path):
    path = write(tmp_path, sorted(EXAMPLE, key=lambda sample: str(sample.group)))
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:2], "no JSON"]))
    found = iter_tree_file(path)
    assert [len(next(found)) for _ in range(4)] == [5, 5, 0, 3]


def test_ids_that_the_tokenizer_does_not_have_are_counted(tmp_path, tokenizer):
    path = write(tmp_path, [Sample([2**31 - 1], source="made:1")])
    _, report = read_counted(path, tokenizer=tokenizer, expand="per_step")
    assert report.ids_outside == report.already_sequences == 1
    assert report.first_outside is not None
    assert report.first_outside.startswith("made:1 with id 2147483647 of ")


@one_folder
@given(st.data())
def test_a_file_that_was_cut_off_is_never_read_as_whole(tmp_path, data):
    path = write(tmp_path, EXAMPLE)
    whole = path.read_bytes()
    header = whole.index(b"\n")
    kept = data.draw(st.integers(header + 1, len(whole) - 2))
    path.write_bytes(whole[:kept])
    with pytest.raises(ValueError, match=r"^t\.tree\.jsonl:\d: "):
        read_samples(path)


@one_folder
@given(st.data())
def test_a_changed_byte_is_an_error_with_file_and_line_or_another_readable_file(tmp_path, data):
    path = write(tmp_path, EXAMPLE)
    whole = bytearray(path.read_bytes())
    place = data.draw(st.integers(whole.index(b"\n") + 1, len(whole) - 1))
    whole[place] = data.draw(st.integers(0, 255))
    path.write_bytes(whole)
    # Any other exception fails the test, and so does an error that names no line.
    refused = ""
    try:
        count = len(read_samples(path))
    except ValueError as error:
        refused, count = str(error), 0
    assert refused.startswith("t.tree.jsonl:") if refused else count == len(EXAMPLE)


def put(*place: Any, value: Any) -> Any:
    def change(row: Any) -> None:
        for step in place[:-1]:
            row = row[step]
        row[place[-1]] = value

    return change


@pytest.mark.parametrize(
    ("number", "change", "message"),
    [
        (1, put("version", value=2), "1: field 'version' must be 1, got 2"),
        (1, put("version", value=True), "1: field 'version' must be 1, got True"),
        (2, put("nodes", 0, 1, value=-1), "2: field 'nodes[0][1]' "),
        (2, put("nodes", 0, 1, value=2**31), "2: field 'nodes[0][1]' "),
        (2, put("nodes", 0, value=[]), "2: field 'nodes[0]' "),
        (2, put("nodes", value=3), "2: field 'nodes' must be a valid list, got 3"),
        (2, put("parents", 1, value=1), "2: field 'parents[1]' must be a node before it or -1"),
        (2, put("parents", value=[-1]), "2: field 'parents' has 1 entries for 3 nodes"),
        (2, put("keys", value=[[1, 2, 3]]), "2: field 'keys' has 1 entries for 3 nodes"),
        (2, put("keys", value=[[1], [1], [1]]), "2: field 'keys[0]' has 1 entries for 3 tokens"),
        (2, put("group", value=1.5), "2: field 'group"),
        (2, put("colour", value=1), "2: field 'colour' "),
        (2, put("sequences", value=[]), "2: field 'sequences' "),
        (2, put("sequences", 0, "end", value=3), "2: field 'sequences[0].end' must be one of 3"),
        (2, put("sequences", 0, "index", value=2), "2: field 'sequences' must have every index"),
        (2, put("sequences", 0, "index", value=5), "4: sequences must be numbered without"),
        (2, put("sequences", 0, "weights", value=[[1.0, 4]]), "2: field 'sequences[0].weights'"),
        (2, put("sequences", 0, "weights", value=[[1.0, 0]]), "2: field 'sequences[0].weights"),
        (2, put("sequences", 0, "weights", value=[[float("nan"), 5]]), "2: field 'sequences[0].w"),
        (2, put("sequences", 0, "weights", value=[[10**400, 5]]), "2: field 'sequences[0].weights"),
        (2, put("sequences", 0, "advantage", value=float("inf")), "2: field 'sequences[0].adv"),
        (2, put("sequences", 0, "advantage", value="x"), "2: field 'sequences[0].advantage'"),
        (2, put("sequences", 0, "advantage", value=True), "2: field 'sequences[0].advantage'"),
        (2, put("sequences", 0, "advantage", value=10**400), "2: field 'sequences[0].advantage'"),
        (2, put("sequences", 0, "advantage", value=[1]), "2: field 'sequences[0].advantage'"),
        (2, put("sequences", 0, "logprobs", value=0), "2: field 'sequences[0].logprobs' "),
        (2, put("sequences", 0, "colour", value=1), "2: field 'sequences[0].colour' is unknown"),
        (2, None, "3: the last line must count 1 trees and 1 sequences"),
        (4, None, "3: a tree file must end with the line that counts its trees"),
        (4, put("trees", value=3), "4: the last line must count 2 trees"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_named_with_line_and_field(tmp_path, number, change, message):
    path = write(tmp_path, EXAMPLE)
    edit(path, number, change)
    with pytest.raises(ValueError) as caught:
        read_samples(path)
    assert str(caught.value).startswith(f"t.tree.jsonl:{message}")


def test_a_line_after_the_last_is_refused(tmp_path):
    path = write(tmp_path, EXAMPLE)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines, lines[1]]))
    with pytest.raises(ValueError, match=r"^t\.tree\.jsonl:5: nothing must follow"):
        read_samples(path)


@pytest.mark.parametrize("digits", [30, 5000])
def test_an_integer_of_any_length_is_refused_by_line(tmp_path, digits):
    path = write(tmp_path, EXAMPLE)
    path.write_text(path.read_text().replace("[1,2,3]", "[1,2," + "9" * digits + "]"))
    with pytest.raises(ValueError, match=r"^t\.tree\.jsonl:2: "):
        read_samples(path)


def test_a_file_without_a_sequence_is_refused(tmp_path):
    path = write(tmp_path, [])
    assert is_tree_file(path)
    with pytest.raises(ValueError, match="must give at least one sequence, got none of 0 rows"):
        read_samples(path)


@pytest.mark.parametrize(
    "text", ["", "[]", '{"input_ids": [1]}\n', "[" * 100_000, '{"format": "other"}\n', "\xff"]
)
def test_other_files_are_no_tree_files(tmp_path, text):
    path = tmp_path / "t.tree.jsonl"
    path.write_bytes(text.encode("latin-1"))
    assert not is_tree_file(path)


def test_a_first_line_of_another_version_is_still_a_tree_file(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"format": "treetrain.tree", "version": 9}\n')
    assert is_tree_file(path)


def test_keys_in_some_samples_of_a_group_are_refused_before_anything_is_lost():
    samples = [Sample([1], keys=[1]), Sample([1])]
    with pytest.raises(ValueError, match=r"none for samples\[1\] of group None"):
        list(tree_lines(samples, build_prefix_tree))


def test_a_foreign_tree_with_siblings_that_start_alike_gives_its_sequences(tmp_path):
    path = write(tmp_path, [Sample([1, 2]), Sample([1, 3])])
    edit(path, 2, lambda row: row.update(nodes=[[1, 2], [1, 3]], parents=[-1, -1]))
    edit(path, 2, lambda row: [one.update(end=n) for n, one in enumerate(row["sequences"])])
    found = read_samples(path)
    assert [np.asarray(one.tokens).tolist() for one in found] == [[1, 2], [1, 3]]


@pytest.mark.parametrize(
    ("file", "expand"),
    [
        ("taubench-airline/trajectories.jsonl", "per_step"),
        ("sweagent-demos/trajectories.jsonl", "per_step"),
        ("tree-of-thought/samples.jsonl", "whole"),
        ("openassistant-trees/trees.jsonl", "per_step"),
    ],
)
def test_public_rows_come_back_byte_for_byte(shared_data, tokenizer, tmp_path, file, expand):
    samples = read_samples(shared_data / file, tokenizer=tokenizer, expand=expand)
    found = read_samples(write(tmp_path, samples))
    assert [contents(one) for one in found] == [contents(one) for one in samples]
