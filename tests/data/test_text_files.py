from __future__ import annotations

import json

import pytest

from treetrain.data.text_files import load_json, read_json, read_text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"a": tru}', r"^rows:7: must be JSON, got an error at column 7"),
        (b'\n{"a" 1}', r"^rows:7: must be JSON, got an error at line 2, column 6"),
        (b'"\xff"', r"^rows:7: must be UTF-8, got invalid start byte at byte 1"),
        # A half of a character, as json would take it.
        (b'"\xed\xa0\x80"', r"^rows:7: must be UTF-8, got invalid continuation byte at byte 1"),
        ("{}".encode("utf-16"), r"^rows:7: must be UTF-8"),
        (b"[" * 100_000, r"^rows:7: must be nested less deeply"),
    ],
)
def test_what_is_wrong_in_json_is_said_with_its_place(text, message):
    with pytest.raises(ValueError, match=message):
        load_json(text, "rows:7")


def test_an_integer_that_python_refuses_is_its_digits():
    assert load_json('{"a": 3, "b": ' + "9" * 5000 + "}", "x") == {"a": 3, "b": "9" * 5000}


def test_a_byte_order_mark_is_no_part_of_the_value():
    assert load_json("\ufeff[1]".encode(), "x") == [1]


def test_files_are_named(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_bytes(b"\xe9")
    for read in (read_text, read_json):
        with pytest.raises(ValueError, match=r"notes.txt: must be UTF-8, got .* at byte 0"):
            read(path)
    path.write_text(json.dumps({"a": "é"}, ensure_ascii=False), "utf-8")
    assert read_json(path) == {"a": "é"}
    assert read_text(path) == '{"a": "é"}'
