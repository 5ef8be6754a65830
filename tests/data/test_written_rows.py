from __future__ import annotations

import json
from dataclasses import fields

import pytest
from hypothesis import HealthCheck, given, settings
from tests.data.tree_samples import contents, sample_lists

from treetrain.data.formats import TokenRow
from treetrain.data.rows import read_samples
from treetrain.data.sample import Sample
from treetrain.data.written_rows import VALUES, flat_row, write_tree_row
from treetrain.tree.build import build_prefix_tree


def test_rows_of_token_ids_have_a_field_for_all_that_a_sample_holds_but_its_source():
    named = {"tokens": "input_ids", "trajectory": "trajectory_id"}
    held = {named.get(one.name, one.name) for one in fields(Sample)} - {"source"}
    assert held <= set(TokenRow.model_fields)
    assert set(VALUES) <= held


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sample_lists())
def test_rows_of_token_ids_come_back_byte_for_byte_but_for_the_source(tmp_path, samples):
    path = tmp_path / "rows.jsonl"
    lines = [json.dumps(flat_row(one, index)) + "\n" for index, one in enumerate(samples)]
    path.write_text("".join(lines), encoding="utf-8")
    found = read_samples(path)
    without = [[entry for entry in contents(one) if entry[0] != "source"] for one in samples]
    assert [[entry for entry in contents(one) if entry[0] != "source"] for one in found] == without


@pytest.mark.parametrize("name", ["group", "trajectory"])
@pytest.mark.parametrize("value", [(1, 2), 1.5, True])
def test_a_name_that_json_would_change_is_refused(name, value):
    sample = Sample([1], **{name: value})
    message = rf"^samples\[3\]\.{name} must be text or an integer to be written, got "
    with pytest.raises(ValueError, match=message):
        flat_row(sample, 3)
    with pytest.raises(ValueError, match=message):
        write_tree_row(build_prefix_tree([[1]]), [sample], [3])
