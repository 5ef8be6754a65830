from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import treetrain
from treetrain.data.sample import Sample
from treetrain.errors import RandomModelError, check_number, check_type
from treetrain.testing.models import make_tiny_model
from treetrain.tree.metrics import ModelShape

SHAPE = ModelShape(parameters=1, layers=1, heads=1, head_size=1)


class Given:
    """What a caller has in hand when the one wrong argument comes."""

    def __init__(self) -> None:
        self.model = make_tiny_model("llama")
        self.handle = treetrain.prepare(self.model)
        self.batch = treetrain.pack([[1, 2, 3], [1, 2, 4]])

    def sft(self, **changes: Any) -> object:
        arguments = {"model": self.model, "batch": self.batch, "reduction": "sum", **changes}
        return treetrain.sft_loss(**arguments)

    def policy(self, **changes: Any) -> object:
        arguments = {"advantages": [1, 1], "objective": "plain", **changes}
        return treetrain.policy_loss(
            self.model, arguments.pop("batch", self.batch), "sum", **arguments
        )

    def ppo(self, **changes: Any) -> object:
        arguments = {"old_logprobs": "current", "clip_low": 0.2, "clip_high": 0.2, **changes}
        return self.policy(objective="ppo", **arguments)


@pytest.fixture(scope="module")
def given() -> Given:
    return Given()


Call = Callable[[Given], object]

WRONG: dict[str, tuple[Call, str]] = {
    "pack a string": (lambda g: treetrain.pack("abc"), "samples must be a list .* got str"),
    "pack a number": (lambda g: treetrain.pack(3), "samples must be a list .* got int 3"),
    "pack nothing": (lambda g: treetrain.pack(None), "samples must be a list .* got NoneType"),
    "pack a sample": (lambda g: treetrain.pack(Sample([1])), "samples must be .* got Sample"),
    "pack a mapping": (lambda g: treetrain.pack({"tokens": [1]}), "samples must be .* got dict"),
    "pack a set": (lambda g: treetrain.pack({(1, 2)}), "samples must be a list .* got set"),
    "pack texts": (lambda g: treetrain.pack([[1], "ab"]), r"samples\[1\] .* got str; tokenize"),
    "pack a row": (lambda g: treetrain.pack([1, 2]), r"samples\[0\] .* got 1; put a single row"),
    "pack holes": (lambda g: treetrain.pack([[1], None]), r"samples\[1\] must .* got NoneType"),
    "pack rows of json": (lambda g: treetrain.pack([{"tokens": [1]}]), r"samples\[0\] .* got dict"),
    "budget as text": (
        lambda g: treetrain.pack_batches([[1]], max_tokens="3"),
        "max_tokens must be an integer, got str '3'",
    ),
    "budget of parts": (
        lambda g: treetrain.pack_batches([[1]], max_tokens=3.5),
        "max_tokens must be an integer, got float 3.5",
    ),
    "loss of rows": (lambda g: g.sft(batch=[[1, 2]]), "batch must be a Batch from pack.* got list"),
    "loss of nothing": (lambda g: g.sft(batch=None), "batch must be a Batch .* got NoneType"),
    "window as number": (lambda g: g.sft(window=3), "window must be None or .* got int 3"),
    "window as batches": (lambda g: g.sft(window=[g.batch]), "measure_window.* got list"),
    "handle for model": (lambda g: g.sft(model=g.handle), "not its handle, got PreparedModel"),
    "chunk of parts": (lambda g: g.sft(chunk_tokens=2.5), "chunk_tokens must be an integer"),
    "policy of rows": (lambda g: g.policy(batch=[[1, 2]]), "batch must be a Batch .* got list"),
    "policy window": (lambda g: g.policy(window=3), "window must be None or .* got int 3"),
    "one advantage": (lambda g: g.policy(advantages=3), "one row per sequence, got int 3"),
    "advantages as text": (lambda g: g.policy(advantages=["a", "b"]), r"advantages\[0\] .* 'a'"),
    "clip as text": (lambda g: g.ppo(clip_low="a"), "clip_low must be a number, got str 'a'"),
    "clip as bool": (lambda g: g.ppo(clip_high=True), "clip_high must be a number, got bool True"),
    "temperature as text": (lambda g: g.policy(temperature="1"), "temperature must be a number"),
    "logprobs of rows": (
        lambda g: treetrain.sequence_logprobs(g.model, [[1, 2]]),
        "batch must be a Batch .* got list",
    ),
    "entropies of rows": (
        lambda g: treetrain.sequence_logprobs_and_entropies(g.model, None),
        "batch must be a Batch .* got NoneType",
    ),
    "a batch alone": (lambda g: treetrain.measure_window(g.batch), "put a single one into a list"),
    "batches of rows": (lambda g: treetrain.measure_window([[1]]), r"batches\[0\] .* got list"),
    "values as list": (
        lambda g: treetrain.recover_sequences([1.0], g.batch, per="token"),
        "values must be a tensor .* got list",
    ),
    "recover from nothing": (
        lambda g: treetrain.recover_sequences(torch.zeros(4), None, per="token"),
        "batch must be a Batch .* got NoneType",
    ),
    "a batch for its row": (lambda g: g.handle.hidden_states(g.batch), "batch.packed .* got Batch"),
    "a tree alone": (lambda g: treetrain.concatenate_trees(g.batch.tree), "got PrefixTree"),
    "trees of rows": (lambda g: treetrain.concatenate_trees([[1]]), r"trees\[0\] .* got list"),
    "measure rows": (lambda g: treetrain.measure_tree([[1]]), "tree must be .* got list"),
    "bound of rows": (lambda g: treetrain.flop_bound([[1]], SHAPE), r"trees\[0\] .* got list"),
    "bound of a name": (lambda g: treetrain.flop_bound(g.batch.tree, "x"), "shape must be a Model"),
    "prepare a name": (lambda g: treetrain.prepare("x"), "model must be .* got str"),
    "verify a name": (lambda g: treetrain.verify("x", [[1, 2]]), "model must be .* got str 'x'"),
    "verify nothing": (lambda g: treetrain.verify(g.model, None), "samples must .* got NoneType"),
    "verify a batch": (lambda g: treetrain.verify(g.model, g.batch), "samples must .* got Batch"),
    "tolerance as text": (
        lambda g: treetrain.verify(g.model, [[1, 2]], tolerance="1"),
        "tolerance must be a number, got str '1'",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_argument_of_another_type_is_named_with_what_was_expected(
    given: Given, name: str
) -> None:
    call, said = WRONG[name]
    with pytest.raises(TypeError, match=said):
        call(given)


def test_numbers_of_numpy_are_numbers() -> None:
    for number in (np.float32(1), np.int64(1), np.float64(1)):
        check_number("x", number)
    check_number("x", np.int32(1), whole=True)
    with pytest.raises(TypeError, match="x must be an integer, got float64"):
        check_number("x", np.float64(1), whole=True)


def test_a_long_value_is_cut_short() -> None:
    with pytest.raises(TypeError) as refusal:
        check_type("x", "a" * 1000, int, "an int")
    assert len(str(refusal.value)) < 100


def test_an_error_in_two_parts_reads_as_one_sentence_also_from_another_process() -> None:
    error = RandomModelError("it draws", "set the rate to 0")
    for one in (error, pickle.loads(pickle.dumps(error))):
        assert str(one) == "it draws: set the rate to 0"
        assert one.what == "it draws"
