from __future__ import annotations

from typing import Any

import pytest

from treetrain.data.formats import TokenRow
from treetrain.data.report import ReadReport
from treetrain.data.sample import Sample
from treetrain.data.tokens import sample_of_ids


def sample(report: ReadReport | None = None, **fields: Any) -> Sample:
    return sample_of_ids(TokenRow(**fields), "f:3", report or ReadReport("f"))


def test_masks_and_weights_are_multiplied():
    weights = sample(
        input_ids=[5, 6, 7, 8],
        loss_mask=[0, 1, 1, 1],
        completion_mask=[True, True, False, True],
        weights=[1.0, 0.5, 2.0, 3.0],
        labels=[5, 6, 7, -100],
    ).weights
    assert weights.tolist() == [0, 0.5, 0, 0]


def test_padding_goes_by_the_attention_mask_and_may_have_any_id():
    padded = sample(
        input_ids=[-1, 5, 0, 6],
        attention_mask=[0, 1, 0, 1],
        loss_mask=[1, 0, 1, 1],
        keys=[9, 1, 9, 2],
        advantage=[9.0, 1.0, 9.0, 2.0],
    )
    assert padded.tokens.tolist() == [5, 6]
    assert padded.weights.tolist() == [0, 1]
    assert padded.keys is not None
    assert padded.keys.tolist() == [1, 2]


def test_names_and_advantage_are_handed_on():
    named = sample(input_ids=[1], group="g", trajectory_id=7, advantage=-0.5)
    assert (named.group, named.trajectory, named.advantage) == ("g", 7, -0.5)
    assert named.source == "f:3"


def test_a_row_that_says_nothing_about_training_is_counted():
    report = ReadReport("f")
    assert sample(report, input_ids=[1, 2]).weights.tolist() == [1, 1]
    sample(report, input_ids=[1, 2], labels=[1, 2])
    assert report.all_trained == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"loss_mask": [1]}, r"^f:3: field 'loss_mask' has 1 entries for 2 tokens$"),
        ({"attention_mask": [1, 1, 1]}, r"field 'attention_mask' has 3 entries for 2 tokens"),
        ({"weights": [1.0]}, r"field 'weights' has 1 entries for 2 tokens"),
        ({"labels": [1]}, r"field 'labels' has 1 entries for 2 tokens"),
        ({"keys": [1]}, r"field 'keys' has 1 entries for 2 tokens"),
        ({"advantage": [1.0]}, r"field 'advantage' has 1 entries for 2 tokens"),
        ({"labels": [2, -100]}, r"field 'labels\[0\]' must be -100 or the token itself, 1, got 2"),
        ({"input_ids": [1, -2]}, r"field 'input_ids\[1\]' must be in 0 .. 2147483647, got -2"),
        ({"weights": [1.0, float("nan")]}, r"^f:3: weights must be finite"),
    ],
)
def test_a_wrong_column_names_file_line_and_field(fields, message):
    with pytest.raises(ValueError, match=message):
        sample(**{"input_ids": [1, 2], **fields})
