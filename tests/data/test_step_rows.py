from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treetrain.data.formats import describe, parse_row
from treetrain.data.step_rows import ALIASES, sample_of_step

PLAIN = {
    "prompt_ids": [1, 2],
    "response_ids": [3, 4, 5],
    "response_mask": [1, 0, 1],
    "rollout_log_probs": [-0.5, 0.0, -0.25],
    "advantage": [1.0, 2.0, 3.0],
    "reward": 0.5,
    "group": "task",
    "trajectory_id": "t",
    "step": 4,
}


def read(fields: dict[str, Any]) -> Any:
    [(row, fields, source)] = parse_row(fields, "f:1")
    return sample_of_step(row, fields, source)  # type: ignore[arg-type]


def same(left: Any, right: Any) -> None:
    for name in ("tokens", "weights", "advantage", "logprobs", "reward"):
        assert np.array_equal(getattr(left, name), getattr(right, name))
    assert (left.group, left.trajectory) == (right.group, right.trajectory)


def test_the_response_is_trained_and_what_was_recorded_stands_at_its_tokens():
    sample = read(PLAIN)
    assert sample.tokens.tolist() == [1, 2, 3, 4, 5]
    assert sample.weights.tolist() == [0, 0, 1, 0, 1]
    assert sample.logprobs.tolist() == [0, 0, -0.5, 0, -0.25]
    assert sample.advantage.tolist() == [0, 0, 1, 2, 3]
    assert (sample.reward, sample.group, sample.trajectory) == (0.5, "task", "t")
    assert sample.source == "f:1: step 4"


@pytest.mark.parametrize(
    ("names", "whose"),
    [
        (
            {"prompt_ids": "prompts", "response_ids": "responses", "group": "uid",
             "advantage": "advantages", "reward": "token_level_scores"},
            "prompts, responses; verl's names",
        ),
        (
            {"prompt_ids": "prompt_token_ids", "response_mask": "loss_masks",
             "rollout_log_probs": "rollout_logprobs", "reward": "rewards"},
            "prompt_token_ids, response_ids; SkyRL's names",
        ),
        (
            {"response_ids": "completion_ids", "response_mask": "completion_mask",
             "rollout_log_probs": "sampling_per_token_logps", "advantage": "advantages"},
            "prompt_ids, completion_ids; TRL's names",
        ),
    ],
)  # fmt: skip
def test_the_names_of_frameworks_are_the_same_row(names, whose):
    row = {names.get(name, name): value for name, value in PLAIN.items()}
    if "token_level_scores" in row:
        row["token_level_scores"] = [0.0, 0.0, 0.5]
        same(read(row), read({**PLAIN, "reward": [0.0, 0.0, 0.5]}))
    else:
        same(read(row), read(PLAIN))
    [(checked, fields, _)] = parse_row(row, "f:1")
    assert describe(checked, fields) == f"per-step row{{s}} ({whose})"


def test_padding_goes_by_the_mask_and_never_by_the_id():
    padded = {
        "prompts": [0, 0, 1],
        "responses": [2, 0, 0],
        "attention_mask": [0, 1, 1, 1, 1, 0],
        "rollout_log_probs": [-1, -2, 0],
        "input_ids": [0, 0, 1, 2, 0, 0],
    }
    sample = read(padded)
    assert sample.tokens.tolist() == [0, 1, 2, 0]
    assert sample.logprobs.tolist() == [0, 0, -1, -2]
    left = read({"prompt_ids": [0, 1], "prompt_mask": [0, 1], "completion_ids": [2]})
    assert left.tokens.tolist() == [1, 2]


def test_masks_of_tools_and_of_the_response_are_multiplied():
    row = {"prompt_ids": [1], "completion_ids": [2, 3, 4], "completion_mask": [1, 1, 0]}
    assert read({**row, "tool_mask": [1, 0, 1]}).weights.tolist() == [0, 1, 0, 0]


def test_a_trajectory_of_skyrl_names_its_task():
    name = {"instance_id": "task-7", "repetition_id": 2}
    sample = read({"prompt_ids": [1], "response_ids": [2], "trajectory_ids": name})
    assert (sample.group, sample.trajectory) == ("task-7", "task-7_2")


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 9), max_size=4), st.lists(st.integers(0, 9), max_size=4)),
        min_size=1,
        max_size=5,
    )
)
def test_a_row_of_a_batch_is_its_steps_one_by_one(steps):
    rows = [
        {"prompts": prompt, "responses": response, "reward": float(index), "uid": f"g{index}"}
        for index, (prompt, response) in enumerate(steps)
    ]
    batch = {name: [row[name] for row in rows] for name in rows[0]}
    found = parse_row(batch, "f:1")
    assert [place for _, _, place in found] == [f"f:1[{index}]" for index in range(len(rows))]
    for (row, fields, source), own in zip(found, rows, strict=True):
        same(sample_of_step(row, fields, source), read(own))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"response_ids": [3, "4", 5]}, r"^f:1: field 'response_ids\[1\]' must be a valid integer"),
        ({"response_mask": [1]}, "^f:1: field 'response_mask' has 1 entries for 3 tokens of the"),
        ({"advantage": [1.0]}, "^f:1: field 'advantage' has 1 entries for 3 tokens"),
        ({"response_ids": [3, -4, 5]}, r"^f:1: field 'response_ids\[1\]' must be in 0 .. "),
        ({"prompt_ids": [2**31]}, r"^f:1: field 'prompt_ids\[0\]' must be in 0 .. "),
        ({"input_ids": [1]}, "^f:1: field 'input_ids' must be the ids of prompt and response"),
        ({"step": "4"}, "^f:1: field 'step' must be"),
        ({"attention_mask": [1]}, "^f:1: field 'attention_mask' has 1 entries for 5 tokens"),
        ({"trajectory_ids": {"instance_id": 1}}, "trajectory_ids.repetition_id' is required"),
    ],
)
def test_a_wrong_step_names_file_line_and_field(change, message):
    with pytest.raises(ValueError, match=message):
        read({**PLAIN, **change})


def test_a_wrong_step_is_told_by_the_name_it_has_in_the_row():
    with pytest.raises(ValueError, match=r"field 'rollout_logprobs' has 2 entries for 1 tokens"):
        read({"prompt_token_ids": [1], "response_ids": [2], "rollout_logprobs": [0, 0]})
    with pytest.raises(ValueError, match=r"^f:1: field 'rewards' has 1 entries for 2 prompts"):
        read({"prompt_ids": [[1], [1]], "response_ids": [[2], [2]], "rewards": [1.0]})


def test_of_several_names_of_one_field_the_others_are_counted_as_not_read():
    row = {"prompt_ids": [1], "response_ids": [2], "reward": 1.0, "token_level_scores": [9.0]}
    [(checked, _, _)] = parse_row(row, "f:1")
    assert read(row).reward == 1.0
    assert list(checked.model_extra or ()) == ["token_level_scores"]


def test_no_name_stands_for_two_fields():
    names = [name for own in ALIASES.values() for name in own]
    assert len(names) == len(set(names))
