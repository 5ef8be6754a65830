from __future__ import annotations

import json

import pytest

from treetrain.data.fields import ignored_fields
from treetrain.data.formats import parse_row

REPLY = {"role": "assistant", "text": "b", "replies": []}

ROWS = {
    "TokenRow": {"input_ids": [1, 2], "loss_mask": [0, True]},
    "TextRow": {"prompt": "a", "completion": "b"},
    "CompletionRow": {
        "prompt": [{"role": "user", "content": "a"}],
        "completion": [{"role": "assistant", "content": "b"}],
    },
    "ConversationRow": {"messages": [{"role": "user", "content": None}]},
    "TreeRow": {"prompt": {"role": "prompter", "text": "a", "replies": [REPLY]}},
    "RecordedRow": {"prompt": "a", "ids": [1], "text": "b", "retok": None},
}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_recognised_by_its_fields(name):
    [(row, fields, source)] = parse_row(ROWS[name], "f:1")
    assert type(row).__name__ == name
    assert fields is ROWS[name]
    assert source == "f:1"


def test_a_list_of_samples_gives_each_its_group_and_place():
    parsed = parse_row({"group": "g", "samples": [ROWS["TextRow"], ROWS["TokenRow"]]}, "f:4")
    assert [type(row).__name__ for row, _, _ in parsed] == ["TextRow", "TokenRow"]
    assert [row.group for row, _, _ in parsed] == ["g", "g"]
    assert [source for _, _, source in parsed] == ["f:4: samples[0]", "f:4: samples[1]"]


def test_a_sample_s_own_group_is_kept():
    [(row, _, _)] = parse_row({"group": "g", "samples": [{**ROWS["TextRow"], "group": "h"}]}, "f:4")
    assert row.group == "h"


def test_fields_that_nothing_reads_are_named():
    [(row, _, _)] = parse_row({**ROWS["TokenRow"], "trial": 1, "cost": 0.5}, "f:1")
    assert ignored_fields(row) == ["cost", "trial"]


def test_tools_may_be_json_text():
    [(row, _, _)] = parse_row({**ROWS["ConversationRow"], "tools": '[{"name": "f"}]'}, "f:1")
    assert row.tools == [{"name": "f"}]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([1], r"^f:9: a row must be a JSON object, got list"),
        (
            {"text": "a"},
            r"^f:9: the fields \['text'\] fit no known kind of row; accepted.*input_ids",
        ),
        ({"input_ids": [1, "1"]}, r"^f:9: field 'input_ids\[1\]' must be a valid integer, got '1'"),
        ({"input_ids": [True]}, r"^f:9: field 'input_ids\[0\]' must be a valid integer, got True"),
        ({"input_ids": [1.0]}, r"^f:9: field 'input_ids\[0\]' must be a valid integer, got 1.0"),
        ({"input_ids": None}, r"^f:9: field 'input_ids' must be a valid list, got None"),
        ({"input_ids": [1], "loss_mask": [2]}, r"^f:9: field 'loss_mask\[0\]' must be .*got 2"),
        (
            {"input_ids": [1], "weights": ["1"]},
            r"^f:9: field 'weights\[0\]' must be a valid number",
        ),
        ({"input_ids": [1], "group": 1.5}, r"^f:9: field 'group' must be"),
        (
            {"prompt": "a", "completion": 1},
            r"^f:9: field 'completion' must be a valid string, got 1",
        ),
        ({"prompt": "a", "ids": ["1"]}, r"^f:9: field 'ids\[0\]' must be a valid integer"),
        ({"messages": [{"content": "a"}]}, r"^f:9: field 'messages\[0\].role' is required"),
        (
            {"messages": [{"role": "user", "content": 3}]},
            r"^f:9: field 'messages\[0\].content' must",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "url": "x"}]}]},
            r"^f:9: field 'messages\[0\].content\[0\].type'",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": 1}}]}]},
            r"^f:9: field 'messages\[0\].tool_calls\[0\].function.name'",
        ),
        ({"messages": [], "tools": [3]}, r"^f:9: field 'tools\[0\]' must be a valid dictionary"),
        ({"messages": [], "tools": "[{"}, r"^f:9: field 'tools' must be a list, or JSON text"),
        ({"prompt": {"replies": []}}, r"^f:9: field 'prompt.text' is required"),
        ({"samples": [{"x": 1}]}, r"^f:9: samples\[0\]: the fields \['x'\] fit no known kind"),
    ],
)
def test_a_wrong_row_names_file_line_and_field(row, message):
    with pytest.raises(ValueError, match=message):
        parse_row(row, "f:9")


def test_messages_may_be_the_text_of_a_list():
    messages = [{"role": "user", "content": "a"}]
    [(_, fields, _)] = parse_row({"messages": json.dumps(messages)}, "f:1")
    assert fields["messages"] == messages
    with pytest.raises(ValueError, match=r"^f:9: field 'messages' must be a list, or JSON text"):
        parse_row({"messages": "[{"}, "f:9")
