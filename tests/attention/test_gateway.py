"""Rows that read their ancestors through gateways, against the undivided tree and each sequence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from tests.attention.rows import Row, cut_tree, make_gateways
from torch import Tensor

from treetrain.attention.api import tree_attention
from treetrain.packing.gateway import LayerGateway, LayerStore
from treetrain.packing.packed_tree import pack_tree
from treetrain.testing.trees import random_forest, tree_family
from treetrain.tree.build import build_prefix_tree
from treetrain.tree.prefix_tree import PrefixTree

FAMILY = [name for name, sequences in tree_family().items() if any(sequences)]
LAYERS: list[dict[str, Any]] = [
    {},
    {"window": 4},
    {"window": 1},
    {"chunk": 5},
    {"window": 3, "chunk": 8},
    {"softcap": 0.8},
    {"sinks": True},
    {"window": 6, "softcap": 0.8, "sinks": True},
]


def draw_inputs(
    tokens: int,
    *,
    heads: int = 4,
    kv_heads: int = 2,
    size: int = 6,
    value_size: int = 5,
    sinks: bool = False,
    dtype: torch.dtype = torch.float64,
) -> list[Tensor]:
    """Query, key, value, perhaps sinks, and last the gradient of the output."""
    generator = torch.Generator().manual_seed(tokens)
    shapes = [(1, heads, tokens, size), (1, kv_heads, tokens, size), (1, kv_heads, tokens)]
    shapes[2] += (value_size,)
    shapes += [(heads,)] * sinks + [(1, heads, tokens, value_size)]
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes
    ]


def run_whole(
    tree: PrefixTree, inputs: list[Tensor], attend: Callable[..., Tensor]
) -> list[Tensor]:
    """Output and gradients of attention that takes all tokens at once."""
    leaves = [tensor.clone().requires_grad_() for tensor in inputs[:-1]]
    output = attend(tree, *leaves)
    return [output.detach(), *torch.autograd.grad(output, leaves, inputs[-1])]


def attend_undivided(backend: str, **layer: Any) -> Callable[..., Tensor]:
    def attend(tree: PrefixTree, *leaves: Tensor) -> Tensor:
        sinks = leaves[3] if layer.get("sinks") else None
        options = {**layer, "sinks": sinks, "backend": backend}
        return tree_attention(*leaves[:3], pack_tree(tree), **options)

    return attend


def attend_alone(tree: PrefixTree, *leaves: Tensor, **layer: Any) -> Tensor:
    """Softmax over each sequence alone; the last sequence with a token gives its output."""
    query, key, value = leaves[:3]
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
    output = query.new_zeros(*query.shape[:3], value.shape[-1])
    for number in range(tree.num_sequences):
        place = torch.tensor(tree.positions(number))
        scores = query[:, :, place] @ key[:, :, place].transpose(-1, -2) * query.shape[-1] ** -0.5
        if layer.get("softcap"):
            scores = layer["softcap"] * torch.tanh(scores / layer["softcap"])
        step = torch.arange(len(place))
        distance = step[:, None] - step
        visible = (distance >= 0) & (distance < layer.get("window", len(place) + 1))
        chunk = layer.get("chunk", len(place) + 1)
        visible &= step[:, None] // chunk == step // chunk
        scores = scores.masked_fill(~visible, float("-inf"))
        if layer.get("sinks"):
            scores = torch.cat(
                [scores, leaves[3][:, None, None].expand(*scores.shape[1:3], 1)[None]], -1
            )
        weights = scores.softmax(-1)[..., : len(place)]
        output[:, :, place] = weights @ value[:, :, place]
    return output


def run_rows(
    rows: list[Row],
    inputs: list[Tensor],
    *,
    backend: str = "slices",
    gateways: list[LayerGateway] | None = None,
    **layer: Any,
) -> list[Tensor]:
    """Output and gradients of rows that run parents first and go backward children first."""
    gateways = gateways or make_gateways(rows)
    grad = inputs[-1]
    results = [torch.full_like(grad, torch.nan), *map(torch.zeros_like, inputs[:-1])]
    passes: list[tuple[Tensor, list[Tensor]]] = []
    for row, gateway in zip(rows, gateways, strict=True):
        leaves = [tensor[:, :, row.own].clone().requires_grad_() for tensor in inputs[:3]]
        leaves += [tensor.clone().requires_grad_() for tensor in inputs[3:-1]]
        options = {**layer, "sinks": leaves[3] if layer.get("sinks") else None}
        output = tree_attention(*leaves[:3], row.tree, backend=backend, gateway=gateway, **options)
        results[0][:, :, row.own] = output.detach()
        passes.append((output, leaves))
    for row, (output, leaves) in reversed(list(zip(rows, passes, strict=True))):
        output.backward(grad[:, :, row.own])
        for total, leaf in zip(results[1:], leaves, strict=True):
            if leaf.grad is not None and leaf.ndim == 4:
                total[:, :, row.own] = leaf.grad
            elif leaf.grad is not None:
                total += leaf.grad
    return results


def assert_close(ours: list[Tensor], others: list[Tensor]) -> None:
    """float64: output and all gradients within 1e-10."""
    for one, other in zip(ours, others, strict=True):
        assert float((one - other).abs().max()) <= 1e-10


def check_rows(
    sequences: list[list[int]],
    cuts: list[int],
    rng: np.random.Generator | None,
    layer: dict[str, Any],
) -> None:
    tree = build_prefix_tree(sequences)
    inputs = draw_inputs(tree.num_tokens, sinks=bool(layer.get("sinks")))
    rows = cut_tree(tree, cuts, rng)
    alone = run_whole(tree, inputs, lambda *leaves: attend_alone(*leaves, **layer))
    for backend in ("slices", "reference"):
        ours = run_rows(rows, inputs, backend=backend, **layer)
        assert_close(ours, run_whole(tree, inputs, attend_undivided(backend, **layer)))
        assert_close(ours, alone)


@given(
    sequences=st.lists(st.lists(st.integers(0, 2), max_size=9), min_size=1, max_size=8),
    seed=st.integers(0, 2**32 - 1),
    density=st.sampled_from([0.1, 0.4, 1.0]),
    layer=st.sampled_from(LAYERS),
)
def test_any_cut_of_any_tree_gives_what_the_tree_and_each_sequence_alone_give(
    sequences: list[list[int]], seed: int, density: float, layer: dict[str, Any]
) -> None:
    if not any(sequences):
        sequences = [*sequences, [1]]
    rng = np.random.default_rng(seed)
    tokens = build_prefix_tree(sequences).num_tokens
    cuts = np.flatnonzero(rng.random(tokens) < density).tolist()
    check_rows(sequences, cuts, rng, layer)


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.parametrize("name", FAMILY)
def test_family_cut_into_rows_equals_the_tree(name: str, layer: dict[str, Any]) -> None:
    rng = np.random.default_rng(len(name))
    tokens = build_prefix_tree(tree_family()[name]).num_tokens
    cuts = rng.permutation(tokens)[: tokens // 4].tolist()
    check_rows(tree_family()[name], cuts, rng, layer)


@pytest.mark.parametrize("layer", [{}, {"window": 150}, {"chunk": 128}, {"window": 40}], ids=str)
def test_long_runs_cut_in_the_middle_equal_the_tree(layer: dict[str, Any]) -> None:
    """Gateways of hundreds of tokens, five partitions deep, windows that reach through two."""
    rng = np.random.default_rng(3)
    stem = rng.integers(0, 50, 400).tolist()
    sequences = [[*stem[:at], *rng.integers(50, 60, 110)] for at in (400, 310, 120, 119, 5)]
    tree = build_prefix_tree(sequences)
    assert tree.positions(0).tolist() == list(range(510))
    check_rows(sequences, [90, 180, 300, 301, 420, 505], rng, layer)


def test_one_row_may_hold_pieces_that_hang_at_different_depths() -> None:
    sequences = [[1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 8, 8], [1, 2, 9, 9, 9]]
    tree = build_prefix_tree(sequences)
    cuts = [4, 7, 9]
    seeds = [
        seed
        for seed in range(20)
        if len(cut_tree(tree, cuts, np.random.default_rng(seed))[-1].own) == 8
    ]
    row = cut_tree(tree, cuts, np.random.default_rng(seeds[0]))[-1]
    assert len(row.path) == 4
    assert sorted(row.tree.depth_positions[0].tolist()) == [2, 3, 4, 4, 4, 5, 5, 6]
    for layer in LAYERS:
        check_rows(sequences, cuts, np.random.default_rng(seeds[0]), layer)


def test_partitions_may_be_deep() -> None:
    sequences = random_forest(np.random.default_rng(4), depth=7)
    tree = build_prefix_tree(sequences)
    cuts = list(range(0, tree.num_tokens, 2))
    owners = {token: row for row in cut_tree(tree, cuts) for token in row.own}
    depth = max(len({id(owners[token]) for token in row.path}) for row in owners.values())
    assert depth >= 6
    check_rows(sequences, cuts, None, {"window": 7})


@pytest.mark.parametrize("sizes", [(8, 3), (3, 8), (8, 8)])
@pytest.mark.parametrize("kv_heads", [1, 4])
def test_heads_and_sizes_of_any_kind_go_through_a_gateway(
    sizes: tuple[int, int], kv_heads: int
) -> None:
    tree = build_prefix_tree(tree_family()["uneven"])
    inputs = draw_inputs(tree.num_tokens, kv_heads=kv_heads, size=sizes[0], value_size=sizes[1])
    rows = cut_tree(tree, [2, 5, 8, 11])
    whole = run_whole(tree, inputs, attend_undivided("reference"))
    for backend in ("slices", "reference"):
        assert_close(run_rows(rows, inputs, backend=backend), whole)


@pytest.mark.parametrize(
    "required", [(True, False, False), (False, True, False), (False, False, True)]
)
@pytest.mark.parametrize("backend", ["slices", "reference"])
def test_gradients_reach_ancestors_whichever_input_requires_them(
    required: tuple[bool, ...], backend: str
) -> None:
    """The row of the ancestors requires all; its descendants require one."""
    tree = build_prefix_tree(tree_family()["comb"])
    inputs = draw_inputs(tree.num_tokens, size=5)
    rows = cut_tree(tree, [12])
    gateways = make_gateways(rows)
    whole = run_whole(tree, inputs, attend_undivided(backend))
    leaves = [x[:, :, rows[0].own].clone().requires_grad_() for x in inputs[:3]]
    first = tree_attention(*leaves, rows[0].tree, backend=backend, gateway=gateways[0])
    own = [
        x[:, :, rows[1].own].clone().requires_grad_(needed)
        for x, needed in zip(inputs[:3], required, strict=True)
    ]
    second = tree_attention(*own, rows[1].tree, backend=backend, gateway=gateways[1])
    second.backward(inputs[-1][:, :, rows[1].own])
    first.backward(inputs[-1][:, :, rows[0].own])
    assert_close([leaf.grad for leaf in leaves], [x[:, :, rows[0].own] for x in whole[1:]])


@pytest.mark.parametrize("copy", [True, False])
def test_stores_hold_views_or_copies(copy: bool) -> None:
    tree = build_prefix_tree([[1, 2, 3, 4], [1, 2, 3, 5]])
    inputs = draw_inputs(tree.num_tokens)
    rows = cut_tree(tree, [3, 4])
    gateways = make_gateways(rows, copy=copy)
    key = inputs[1][:, :, rows[0].own]
    with torch.no_grad():
        tree_attention(
            *(x[:, :, rows[0].own] for x in inputs[:1]),
            key,
            inputs[2][:, :, rows[0].own],
            rows[0].tree,
            gateway=gateways[0],
        )
    store = gateways[0].kept[0][0]
    assert store.key is not None
    assert torch.equal(store.key, key)
    assert (store.key.data_ptr() == key.data_ptr()) is not copy


def test_what_autograd_saves_of_a_row_does_not_grow_with_its_gateway() -> None:
    saved: list[int] = []

    def count(tensor: Tensor) -> Tensor:
        saved[-1] += tensor.untyped_storage().nbytes()
        return tensor

    for stem in (8, 4000):
        tree = build_prefix_tree([[*range(stem), 7, leaf, 8, 9] for leaf in range(5)])
        inputs = draw_inputs(tree.num_tokens, sinks=True)
        rows = cut_tree(tree, [stem])
        gateways = make_gateways(rows)
        for number, row in enumerate(rows):
            leaves = [x[:, :, row.own].clone().requires_grad_() for x in inputs[:3]]
            saved.append(0)
            with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
                output = tree_attention(
                    *leaves, row.tree, gateway=gateways[number], sinks=inputs[3]
                )
            assert output.requires_grad
    assert saved[1] == saved[3] > 0
    assert saved[2] > 100 * saved[0]


@pytest.mark.parametrize("window", [None, 24])
def test_bfloat16_rounds_as_each_sequence_alone_does(window: int | None) -> None:
    """Both are judged by float64: at most 1.1 times as far off as plain attention."""
    sequences = [[*range(100), 100 + leaf, *range(20), leaf % 4, *range(9)] for leaf in range(8)]
    tree = build_prefix_tree(sequences)
    inputs = draw_inputs(tree.num_tokens, kv_heads=4, size=32, value_size=32, dtype=torch.bfloat16)

    def attend_fused(tree: PrefixTree, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output = torch.zeros_like(query)
        for number in range(tree.num_sequences):
            place = torch.tensor(tree.positions(number))
            step = torch.arange(len(place))
            distance = step[:, None] - step
            visible = (distance >= 0) & (distance < (window or len(place)))
            output[:, :, place] = F.scaled_dot_product_attention(
                query[:, :, place], key[:, :, place], value[:, :, place], attn_mask=visible
            )
        return output

    exact = [tensor.double() for tensor in inputs]
    truth = run_whole(tree, exact, attend_undivided("reference", window=window))
    alone = run_whole(tree, inputs, attend_fused)
    rng = np.random.default_rng(0)
    rows = cut_tree(tree, rng.permutation(tree.num_tokens)[:30].tolist(), rng)
    for backend in ("slices", "reference"):
        ours = run_rows(rows, inputs, backend=backend, window=window)
        for one, other, true in zip(ours, alone, truth, strict=True):
            assert (one - true).norm() <= 1.1 * (other - true).norm()


@pytest.mark.parametrize("backend", ["slices", "reference"])
def test_gradients_of_many_children_are_summed_without_rounding(backend: str) -> None:
    """256 rows read one gateway in bfloat16; its gradients are as good as the undivided tree's."""
    stem = list(range(40))
    tree = build_prefix_tree([[*stem, 100 + child, child % 3] for child in range(256)])
    inputs = draw_inputs(tree.num_tokens, kv_heads=4, dtype=torch.bfloat16)
    exact = [tensor.double() for tensor in inputs]
    truth = run_whole(tree, exact, attend_undivided("reference"))
    undivided = run_whole(tree, inputs, attend_undivided("slices"))
    rows = cut_tree(tree, range(40, tree.num_tokens, 2))
    assert len(rows) == 257
    gateways = make_gateways(rows)
    ours = run_rows(rows, inputs, backend=backend, gateways=gateways)
    for one, other, true in zip(ours[2:], undivided[2:], truth[2:], strict=True):
        own = slice(0, 40)
        distance = (one - true)[:, :, own].norm()
        assert distance <= 1.02 * (other - true)[:, :, own].norm()
    store = gateways[0].kept[0][0]
    assert store.grad_key is not None
    assert store.grad_key.dtype == torch.float32


def test_far_ancestors_that_no_query_reads_get_no_gradient_and_are_not_joined() -> None:
    tree = build_prefix_tree([list(range(300)), [*range(290), 7]])
    rows = cut_tree(tree, [295, 300])
    inputs = draw_inputs(tree.num_tokens, dtype=torch.float32)
    gateways = make_gateways(rows)
    joined: list[int] = []
    cat = torch.cat

    def watch(tensors: list[Tensor], dim: int = 0) -> Tensor:
        joined.append(sum(tensor.shape[dim] for tensor in tensors))
        return cat(tensors, dim=dim)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "cat", watch)
        run_rows(rows, inputs, gateways=gateways, window=16)
    assert max(joined) <= 2 * 16 + 5
    store = gateways[0].kept[0][0]
    assert store.grad_key is not None
    assert not store.grad_key[:, :, : 290 - 15].any()
    assert store.grad_key[:, :, 290 - 15 :].all()


def test_a_row_with_ancestors_wants_the_gateway_to_them() -> None:
    tree = build_prefix_tree([[1, 2, 3, 4], [1, 2, 5]])
    row = cut_tree(tree, [2])[1]
    query, key, value, _ = (x[:, :, :2] for x in draw_inputs(2))
    with pytest.raises(ValueError, match="gateway must be given for a row with 2 ancestors"):
        tree_attention(query, key, value, row.tree)
    gateway = LayerGateway([(LayerStore(), slice(0, 3))], [], copy=False)
    with pytest.raises(ValueError, match="lead to the row's 2 ancestors, got 3 tokens"):
        tree_attention(query, key, value, row.tree, gateway=gateway)
    with pytest.raises(ValueError, match="row's 2 tokens"):
        tree_attention(*draw_inputs(4)[:3], row.tree, gateway=gateway)


@pytest.mark.parametrize("backend", ["slices", "reference"])
def test_second_derivatives_through_a_gateway_are_refused_by_name(backend: str) -> None:
    tree = build_prefix_tree([[1, 2, 3, 4], [1, 2, 5]])
    rows = cut_tree(tree, [2])
    gateways = make_gateways(rows)
    inputs = draw_inputs(tree.num_tokens)
    for row, gateway in zip(rows, gateways, strict=True):
        leaves = [x[:, :, row.own].clone().requires_grad_() for x in inputs[:3]]
        output = tree_attention(*leaves, row.tree, backend=backend, gateway=gateway)
    (gradient,) = torch.autograd.grad(output.sum(), leaves[1], create_graph=True)
    with pytest.raises(RuntimeError, match="differentiated once"):
        gradient.sum().backward()
