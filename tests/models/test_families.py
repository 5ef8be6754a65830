"""Each family on trees against the untouched model on each sequence alone."""

from __future__ import annotations

import numpy as np
import pytest
from tests.models.baseline import check_equal, gradients, logits_alone, logits_on_tree

from treetrain.models.prepare import prepare
from treetrain.testing.models import FAMILIES, make_tiny_model
from treetrain.testing.trees import random_forest, tree_family

TREES = {
    "forest": random_forest(np.random.default_rng(0), roots=3, node_tokens=7),
    **{name: tree_family()[name] for name in ("uneven", "comb", "equal_sequences", "chain")},
}


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_all_gradients_are_those_of_each_sequence_alone(family: str, tree: str) -> None:
    sequences = TREES[tree]
    model = make_tiny_model(family)
    alone = logits_alone(model, sequences)
    expected = gradients(model, alone)
    ours = logits_on_tree(prepare(model), sequences)
    check_equal(ours, alone, gradients(model, ours), expected)


@pytest.mark.parametrize("family", ["mistral", "gemma3_text", "gpt_oss", "gemma2"])
def test_windows_are_found_and_bite(family: str) -> None:
    """Without the window the same weights give other logits."""
    prepared = prepare(make_tiny_model(family))
    assert 4 in {layer.window for layer in prepared.layers.values()}
    sequences = TREES["comb"]
    wide = prepare(make_tiny_model(family, sliding_window=500))
    ours, others = logits_on_tree(prepared, sequences), logits_on_tree(wide, sequences)
    assert not np.allclose(ours[-1].detach(), others[-1].detach(), atol=1e-3)


@pytest.mark.parametrize("backend", ["slices", "reference"])
@pytest.mark.parametrize("family", ["llama", "gpt_oss"])
def test_a_named_backend_serves_every_layer(family: str, backend: str) -> None:
    sequences = TREES["uneven"]
    model = make_tiny_model(family)
    alone = logits_alone(model, sequences)
    expected = gradients(model, alone)
    prepared = prepare(model, backend)
    assert {layer.backend for layer in prepared.layers.values()} == {backend}
    ours = logits_on_tree(prepared, sequences)
    check_equal(ours, alone, gradients(model, ours), expected)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_either_implementation_of_the_model_may_stand_behind(implementation: str) -> None:
    sequences = TREES["uneven"]
    model = make_tiny_model("qwen3", attn_implementation=implementation)
    alone = logits_alone(model, sequences)
    expected = gradients(model, alone)
    ours = logits_on_tree(prepare(model), sequences)
    check_equal(ours, alone, gradients(model, ours), expected)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss", "gpt2"])
def test_gradient_checkpointing_changes_no_gradient(family: str, reentrant: bool) -> None:
    sequences = TREES["uneven"]
    model = make_tiny_model(family)
    alone = logits_alone(model, sequences)
    expected = gradients(model, alone)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    model.train()
    prepared = prepare(model)
    ours = logits_on_tree(prepared, sequences)
    check_equal(ours, alone, gradients(model, ours), expected)
