"""Models computed row by row through gateways, against each sequence alone and the whole tree."""

from __future__ import annotations

from types import MethodType
from typing import Any

import numpy as np
import pytest
import torch
from tests.attention.rows import Row, cut_tree, make_gateways
from tests.models.baseline import check_equal, logits_alone
from torch import Tensor, nn
from transformers import PreTrainedModel

from treetrain.errors import UnsupportedModelError
from treetrain.models.prepare import prepare
from treetrain.models.prepared import PreparedModel
from treetrain.packing.gateway import LayerGateway, LayerStore
from treetrain.packing.packed_tree import pack_tree
from treetrain.testing.models import FAMILIES, make_tiny_model
from treetrain.testing.trees import random_forest
from treetrain.tree.build import build_prefix_tree
from treetrain.tree.prefix_tree import PrefixTree
from treetrain.verification.widened import widen

SEQUENCES = random_forest(np.random.default_rng(6), roots=2, depth=6, node_tokens=6)


@pytest.fixture
def tree() -> PrefixTree:
    return build_prefix_tree(SEQUENCES)


def cut(tree: PrefixTree) -> list[Row]:
    """Rows at least four deep, some of them with several pieces."""
    rng = np.random.default_rng(1)
    rows = cut_tree(tree, np.flatnonzero(rng.random(tree.num_tokens) < 0.15), rng)
    owners = {token: number for number, row in enumerate(rows) for token in row.own}
    assert max(len({owners[token] for token in row.path}) for row in rows) >= 4
    return rows


def open_gateways(
    prepared: PreparedModel, rows: list[Row], *, copy: bool = True
) -> list[dict[nn.Module, LayerGateway]]:
    """For each row the gateway of each attention module."""
    layers = {module: make_gateways(rows, copy=copy) for module in prepared.layers}
    return [
        {module: gateways[number] for module, gateways in layers.items()}
        for number in range(len(rows))
    ]


def draw_weights(tree: PrefixTree, alone: list[Tensor]) -> tuple[list[Tensor], Tensor]:
    """What a loss multiplies each sequence's logits by, [L, V], and their sums by token, [T, V]."""
    generator = torch.Generator().manual_seed(5)
    weights = [
        torch.randn(one.shape, generator=generator, dtype=torch.float64).to(one) for one in alone
    ]
    sums = alone[0].new_zeros(tree.num_tokens, alone[0].shape[-1])
    for number, weight in enumerate(weights):
        sums.index_add_(0, torch.tensor(tree.positions(number)), weight)
    return weights, sums


def gradients_of(model: PreTrainedModel) -> dict[str, Tensor]:
    return {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        for name, parameter in model.named_parameters()
    }


def gradients_alone(
    model: PreTrainedModel, alone: list[Tensor], weights: list[Tensor]
) -> dict[str, Tensor]:
    model.zero_grad()
    terms = [(one * weight).sum() for one, weight in zip(alone, weights, strict=True)]
    torch.stack(terms).sum().backward()
    return gradients_of(model)


def run_rows(
    prepared: PreparedModel, rows: list[Row], sums: Tensor, *, copy: bool = True
) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits of all tokens, [T, V], and gradients: children run last and go backward first."""
    prepared.model.zero_grad()
    logits = torch.zeros_like(sums)
    passes: list[tuple[Tensor, Tensor]] = []
    for row, gateways in zip(rows, open_gateways(prepared, rows, copy=copy), strict=True):
        hidden = prepared.hidden_states(row.tree, gateways)
        own = prepared.head(hidden)
        logits[row.own] = own.detach()
        passes.append(((own * sums[row.own]).sum(), hidden))
    for loss, hidden in reversed(passes):
        torch.autograd.backward([loss, hidden], [None, torch.zeros_like(hidden)])
    return logits, gradients_of(prepared.model)


def of_sequences(tree: PrefixTree, logits: Tensor) -> list[Tensor]:
    return [logits[torch.tensor(tree.positions(number))] for number in range(len(SEQUENCES))]


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_give_what_each_sequence_alone_gives(family: str, tree: PrefixTree) -> None:
    model = make_tiny_model(family)
    alone = logits_alone(model, SEQUENCES)
    weights, sums = draw_weights(tree, alone)
    expected = gradients_alone(model, alone, weights)
    logits, grads = run_rows(prepare(model), cut(tree), sums)
    check_equal(of_sequences(tree, logits), alone, grads, expected)


@pytest.mark.parametrize("backend", ["slices", "reference"])
@pytest.mark.parametrize("family", ["llama", "gemma2", "mistral", "gemma3_text"])
def test_in_float64_rows_are_exact(family: str, backend: str, tree: PrefixTree) -> None:
    model = make_tiny_model(family, dtype=torch.float64)
    prepared = prepare(model, backend)
    with widen(model):
        with prepared.undone():
            alone = logits_alone(model, SEQUENCES)
            weights, sums = draw_weights(tree, alone)
            expected = gradients_alone(model, alone, weights)
        logits, grads = run_rows(prepared, cut(tree), sums, copy=False)
        undivided = prepared.head(prepared.hidden_states(pack_tree(tree)))
    assert float((logits - undivided).detach().abs().max()) <= 1e-10
    for one, other in zip(of_sequences(tree, logits), alone, strict=True):
        assert float((one - other).detach().abs().max()) <= 1e-10
    scale = max(float(grad.abs().max()) for grad in expected.values())
    for name, grad in grads.items():
        assert float((grad - expected[name]).abs().max()) <= 1e-10 * scale, name


@pytest.mark.parametrize("backend", ["slices", "reference"])
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss", "mistral"])
def test_gradient_checkpointing_changes_no_gradient(
    family: str, reentrant: bool, backend: str, tree: PrefixTree
) -> None:
    dtype = torch.float32 if family == "gpt_oss" else torch.float64  # which its experts refuse
    model = make_tiny_model(family, dtype=dtype).train()
    prepared = prepare(model, backend)
    rows = cut(tree)
    generator = torch.Generator().manual_seed(2)
    sums = torch.randn(tree.num_tokens, 64, generator=generator, dtype=dtype)
    expected, others = run_rows(prepared, rows, sums)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    logits, grads = run_rows(prepared, rows, sums)
    assert torch.equal(logits, expected)
    scale = max(float(grad.abs().max()) for grad in others.values())
    tolerance = {torch.float64: 1e-10, torch.float32: 1e-6}[dtype] * scale
    for name, grad in grads.items():
        assert float((grad - others[name]).abs().max()) <= tolerance, name


def test_adapters_of_queries_alone_train_through_gateways(tree: PrefixTree) -> None:
    """Keys and values of the first layer need no gradient there; those above do."""
    model = make_tiny_model("llama")
    model.requires_grad_(False)
    for layer in model.model.layers:
        layer.self_attn.q_proj.requires_grad_(True)
    alone = logits_alone(model, SEQUENCES)
    weights, sums = draw_weights(tree, alone)
    expected = gradients_alone(model, alone, weights)
    logits, grads = run_rows(prepare(model), cut(tree), sums)
    check_equal(of_sequences(tree, logits), alone, grads, expected)


def attend_twice(model: PreTrainedModel) -> None:
    layer = model.base_model.layers[1]
    forward = type(layer).forward

    def twice(self: nn.Module, hidden_states: Tensor, *args: Any, **keywords: Any) -> Tensor:
        return forward(self, forward(self, hidden_states, *args, **keywords), *args, **keywords)

    layer.forward = MethodType(twice, layer)


def test_a_module_that_attends_twice_is_refused_in_partitions_and_not_on_a_tree() -> None:
    tree = build_prefix_tree([[3, 4, 5], [3, 4, 6]])
    model = make_tiny_model("llama")
    attend_twice(model)
    prepared = prepare(model)
    prepared.hidden_states(pack_tree(tree))
    rows = cut_tree(tree, [2])
    match = r"LlamaAttention of layer 1 attends several times.*token budget"
    with pytest.raises(UnsupportedModelError, match=match):
        prepared.hidden_states(rows[0].tree, open_gateways(prepared, rows)[0])


def test_a_row_with_ancestors_wants_a_gateway_for_each_attention_module() -> None:
    prepared = prepare(make_tiny_model("llama"))
    rows = cut_tree(build_prefix_tree([[3, 4, 5], [3, 4, 6]]), [2])
    with pytest.raises(ValueError, match="gateways must be given for a row with 2 ancestors"):
        prepared.hidden_states(rows[1].tree)
    gateways = open_gateways(prepared, rows)[1]
    gateways.popitem()
    with pytest.raises(ValueError, match=r"each of 4 .* none for LlamaAttention of layer 3"):
        prepared.hidden_states(rows[1].tree, gateways)


def test_one_dense_mask_serves_no_partition() -> None:
    model = make_tiny_model("llama")
    prepared = prepare(model, "mask")
    rows = cut_tree(build_prefix_tree([[3, 4, 5], [3, 4, 6]]), [2])
    for row, gateways in ((rows[1], None), (rows[0], {})):
        with pytest.raises(UnsupportedModelError, match=r"one dense mask.*another backend"):
            prepared.hidden_states(row.tree, gateways)


def test_what_is_checked_of_a_row_is_its_own_tokens_and_the_depth_of_its_paths() -> None:
    model = make_tiny_model("gpt2", n_positions=16, max_position_embeddings=16)
    prepared = prepare(model)
    tree = build_prefix_tree([list(range(3, 21))])
    rows = cut_tree(tree, [5, 15])
    gateways = open_gateways(prepared, rows)
    for row, own in zip(rows[:2], gateways, strict=False):
        prepared.hidden_states(row.tree, own)
    with pytest.raises(ValueError, match=r"at most 16 tokens long.* got 18"):
        prepared.hidden_states(rows[2].tree, gateways[2])


def test_a_row_without_tokens_of_its_own_has_no_hidden_states() -> None:
    prepared = prepare(make_tiny_model("llama"))
    packed = pack_tree(build_prefix_tree([[3, 4, 5]]), ancestors=3)
    gateway = LayerGateway([(LayerStore(), slice(0, 3))], [], copy=False)
    hidden = prepared.hidden_states(packed, dict.fromkeys(prepared.layers, gateway))
    assert hidden.shape == (0, 32)
