from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from treetrain.data.sample import Sample


def test_lists_arrays_and_tensors_give_the_same_sample():
    for tokens in ([3, 1, 2], np.array([3, 1, 2], np.int32), torch.tensor([3, 1, 2])):
        for weights in ([0, 1, 0.5], np.array([0, 1, 0.5], np.float32), torch.tensor([0, 1, 0.5])):
            sample = Sample(tokens, weights)
            assert sample.tokens.dtype == np.int64
            assert sample.weights.dtype == np.float64
            assert sample.tokens.tolist() == [3, 1, 2]
            assert sample.weights.tolist() == [0, 1, 0.5]


def test_weights_of_bfloat16_keep_their_values():
    weights = torch.tensor([0.5, 2.0], dtype=torch.bfloat16, requires_grad=True)
    assert Sample([1, 2], weights).weights.tolist() == [0.5, 2.0]


def test_every_token_has_weight_one_where_no_weights_are_given():
    assert Sample([4, 5]).weights.tolist() == [1, 1]


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
def test_a_boolean_mask_is_weights(kind):
    assert Sample([4, 5], kind([True, False])).weights.tolist() == [1, 0]


def test_padding_is_removed_wherever_it_stands():
    sample = Sample(
        [0, 7, 0, 8, 9, 0],
        [9, 1, 9, 2, 3, 9],
        attention_mask=[0, 1, 0, 1, 1, 0],
        keys=[5, 1, 5, 2, 3, 5],
        advantage=[-1, 0.5, -1, 0.25, 0.125, -1],
    )
    assert sample.tokens.tolist() == [7, 8, 9]
    assert sample.weights.tolist() == [1, 2, 3]
    assert sample.keys is not None
    assert sample.keys.tolist() == [1, 2, 3]
    assert np.asarray(sample.advantage).tolist() == [0.5, 0.25, 0.125]


def test_a_real_token_with_the_padding_id_stays():
    assert Sample([0, 0, 5, 0], attention_mask=[0, 1, 1, 1]).tokens.tolist() == [0, 5, 0]


def test_ids_out_of_range_under_the_mask_do_not_matter():
    assert Sample([-100, 5], attention_mask=[0, 1]).tokens.tolist() == [5]


def test_an_empty_sequence_is_kept():
    assert len(Sample([])) == 0
    assert len(Sample([1, 2], attention_mask=[0, 0])) == 0


def test_the_caller_s_arrays_are_neither_shared_nor_frozen():
    tokens = np.array([1, 2])
    sample = Sample(tokens)
    tokens[0] = 9
    assert sample.tokens.tolist() == [1, 2]
    with pytest.raises(ValueError, match="read-only"):
        sample.tokens[0] = 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        sample.group = 3  # type: ignore[misc]


def test_replace_changes_one_field():
    sample = Sample([1, 2], [0, 1], advantage=2, source="a:1")
    moved = dataclasses.replace(sample, group="g")
    assert (moved.group, moved.advantage, moved.source) == ("g", 2.0, "a:1")
    assert moved.weights.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tokens": 3}, r"tokens must be one-dimensional, got shape \(\)"),
        ({"tokens": [[1, 2]]}, r"tokens must be one-dimensional, got shape \(1, 2\)"),
        ({"tokens": [[1], [1, 2]]}, "tokens must be one-dimensional, got nested lists"),
        ({"tokens": [1], "weights": [[1]]}, r"weights must be one-dimensional"),
        (
            {"tokens": [1, 2], "weights": [1]},
            "weights must have one entry per token, got 1 entries",
        ),
        ({"tokens": [1, 2], "attention_mask": [1]}, "attention_mask must have one entry per token"),
        ({"tokens": [1, 2], "keys": [1]}, "keys must have one entry per token"),
        ({"tokens": [1, 2], "advantage": [1.0]}, "advantage must have one entry per token"),
        ({"tokens": [1, -2]}, "got -2 at index 1"),
        ({"tokens": [2**31]}, f"got {2**31} at index 0"),
        (
            {"tokens": [1, 2], "weights": [1, float("nan")]},
            "weights must be finite, got nan at index 1",
        ),
        ({"tokens": [1], "advantage": float("inf")}, "advantage must be finite, got inf"),
        ({"tokens": [1, 2], "attention_mask": [1, 2]}, "got 2 at index 1"),
    ],
)
def test_a_wrong_value_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        Sample(**arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"tokens": [1.0]},
        {"tokens": ["1"]},
        {"tokens": [True]},
        {"tokens": [1], "weights": ["1"]},
        {"tokens": [1], "keys": [0.5]},
        {"tokens": [1], "attention_mask": ["1"]},
    ],
)
def test_a_wrong_type_of_number_is_a_type_error(arguments):
    with pytest.raises(TypeError, match="must be"):
        Sample(**arguments)


@pytest.mark.parametrize(
    "make",
    [
        list,
        lambda entries: np.array(entries, np.uint64),
        lambda entries: torch.tensor(entries, dtype=torch.uint64),
        lambda entries: [np.uint64(entry) for entry in entries],
    ],
    ids=["list", "array", "tensor", "scalars"],
)
@pytest.mark.parametrize("entry", [2**63, 2**64 - 1])
def test_integers_beyond_int64_are_named_and_do_not_turn_negative(make, entry):
    entries = make([1, entry])
    with pytest.raises(ValueError, match=f"tokens must be .*, got {entry} at index 1"):
        Sample(entries)
    with pytest.raises(ValueError, match=f"keys must be .*, got {entry} at index 1"):
        Sample([1, 2], keys=entries)
    sample = Sample(entries, attention_mask=[1, 0], keys=entries)
    assert sample.tokens.tolist() == sample.keys.tolist() == [1]


def test_keys_may_be_any_int64():
    keys = [-(2**63), 2**63 - 1]
    assert Sample([1, 2], keys=keys).keys.tolist() == keys
    assert Sample([1], keys=np.array([2**63 - 1], np.uint64)).keys.tolist() == keys[1:]


@pytest.mark.parametrize("tokens", [[1, None], [1, 2.5], [1.0, 2**64], [1, "2", None]])
def test_an_entry_that_is_no_integer_is_named(tokens):
    with pytest.raises(TypeError, match=r"must be integers, got .* at index"):
        Sample(tokens)


@pytest.mark.parametrize("name", ["tokens", "weights", "keys", "advantage", "attention_mask"])
def test_a_masked_array_is_not_read_without_its_mask(name):
    masked = np.ma.array([1, 1, 1], mask=[0, 0, 1])
    with pytest.raises(TypeError, match=rf"{name} must be no masked array.*attention_mask"):
        Sample(**{"tokens": [1, 2, 3], name: masked})


def test_a_bool_is_no_token_key_or_advantage():
    with pytest.raises(TypeError, match="tokens must be integers, got bool True at index 1"):
        Sample([1, True, 2])
    with pytest.raises(TypeError, match="keys must be integers, got bool False at index 0"):
        Sample([1, 2], keys=(False, 7))
    for advantage in (True, [True, False]):
        with pytest.raises(TypeError, match="advantage must be numbers, got bool"):
            Sample([1, 2], advantage=advantage)
    assert Sample([1, 2], [True, False]).weights.tolist() == [1, 0]


@pytest.mark.parametrize("name", ["group", "trajectory"])
def test_a_name_that_cannot_be_looked_up_is_refused(name):
    for value in ([1], {}, ("a", [1])):
        with pytest.raises(
            TypeError, match=rf"{name} must be hashable.*got {type(value).__name__}"
        ):
            Sample([1, 2], **{name: value})


def test_tensors_without_plain_values_are_refused_by_name():
    ones = torch.ones(3)
    for tensor in (
        ones.to("meta"),
        ones.to_sparse(),
        torch.quantize_per_tensor(ones, 1.0, 0, torch.quint8),
        torch.nested.nested_tensor([ones, ones], layout=torch.jagged),
    ):
        for name in ("tokens", "weights"):
            with pytest.raises(TypeError, match=f"{name} must be a dense tensor"):
                Sample(**{"tokens": [1, 2, 3], name: tensor})


def test_rank_is_checked_before_shape_and_shape_before_values():
    with pytest.raises(ValueError, match="one-dimensional"):
        Sample([-1, 2], [[1.0]])
    with pytest.raises(ValueError, match="one entry per token"):
        Sample([-1, 2], [1.0])


def test_messages_name_the_source():
    with pytest.raises(ValueError, match=r"^data\.jsonl:17: tokens must be"):
        Sample([-1], source="data.jsonl:17")


def test_no_torch_is_imported():
    import subprocess
    import sys

    program = (
        "import sys; from treetrain.data.sample import Sample; Sample([1], [1]); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_padding_is_removed_from_log_probabilities_and_rewards_too():
    sample = Sample([9, 1, 2], attention_mask=[0, 1, 1], logprobs=[5, 0, -1], reward=[7, 0, 0.5])
    assert sample.logprobs is not None
    assert sample.logprobs.tolist() == [0, -1]
    assert np.asarray(sample.reward).tolist() == [0, 0.5]
    assert Sample([1], reward=2).reward == 2.0


@pytest.mark.parametrize("name", ["logprobs", "reward"])
def test_what_was_recorded_has_one_finite_number_per_token(name):
    with pytest.raises(ValueError, match=f"^f:1: {name} must have one entry per token, got 1"):
        Sample([1, 2], source="f:1", **{name: [0.0]})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"^f:1: {name} must be finite, got nan at index 1"):
        Sample([1, 2], source="f:1", **{name: [0.0, float("nan")]})  # type: ignore[arg-type]
