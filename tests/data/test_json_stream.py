from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treetrain.data import json_stream
from treetrain.data.containers import read_rows

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='"\\[]{},:aé\n\x7f😀', max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(alphabet='"\\[]{},a', max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)


def rows_of(path: Path) -> list[Any]:
    return [row.load() for row in read_rows(path)]


@given(
    st.lists(VALUES, max_size=6),
    st.sampled_from([None, 1]),
    st.booleans(),
    st.integers(1, 40),
    st.sampled_from(["", "\ufeff"]),
)
def test_an_array_is_its_elements_wherever_it_is_cut(
    tmp_path_factory, values, indent, ascii_only, chunk, mark
):
    path = tmp_path_factory.mktemp("array") / "data.json"
    text = mark + " \n" + json.dumps(values, indent=indent, ensure_ascii=ascii_only) + "\n"
    path.write_text(text, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_stream, "CHUNK_BYTES", chunk)
        assert rows_of(path) == values


@given(st.lists(VALUES.filter(lambda value: not isinstance(value, list)), max_size=6))
def test_lines_are_their_values(tmp_path_factory, values):
    path = tmp_path_factory.mktemp("lines") / "data.jsonl"
    path.write_text("".join(json.dumps(value) + "\n" for value in values), encoding="utf-8")
    assert rows_of(path) == values


@pytest.mark.parametrize("name", ["run.json", "run.traj"])
def test_one_object_may_fill_a_file(tmp_path, name):
    path = tmp_path / name
    path.write_text(json.dumps({"a": [1, 2], "b": "c"}, indent=2))
    assert rows_of(path) == [{"a": [1, 2], "b": "c"}]
    [row] = read_rows(path)
    assert row.source == f"{name}:1"


def test_a_wrong_element_does_not_hide_those_after_it(tmp_path):
    path = tmp_path / "data.json"
    path.write_text('[{"a": 1}, {"a": tru}, {"a": 3}]')
    rows = list(read_rows(path))
    assert rows[0].load() == {"a": 1}
    with pytest.raises(ValueError, match=r"^data.json\[1\]: must be JSON, got an error at column"):
        rows[1].load()
    assert rows[2].load() == {"a": 3}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2", r"^data.json\[1\]: an array must end with a bracket, got the end"),
        ('["a', r"^data.json\[0\]: an array must end with a bracket"),
        ("[1] 2", r"^data.json: must end with its array, got b'2' after it"),
        ("[1,]", r"^data.json\[1\]: must be JSON"),
        ("[,1]", r"^data.json\[0\]: must be JSON"),
        ("[1 2]", r"^data.json\[0\]: must be JSON"),
        ("[1}]", r"^data.json\[0\]: must be JSON"),
        ('{\n"a": 1,\n"b" 2}', r"^data.json:1: must be JSON, got an error at line 3, column 5"),
    ],
)
def test_text_that_is_no_array_or_object_is_refused(tmp_path, text, message):
    path = tmp_path / "data.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        rows_of(path)
