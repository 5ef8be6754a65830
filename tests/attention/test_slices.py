"""The rectangle backend against the reference and against attention of each sequence alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from treetrain.attention import kernels, reference, slices
from treetrain.packing.packed_tree import PackedTree, pack_tree
from treetrain.testing.trees import random_forest, tree_family
from treetrain.tree.build import build_prefix_tree

FAMILY = [name for name, sequences in tree_family().items() if any(sequences)]


def gradients(output: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(7)
    weight = torch.randn(output.shape, generator=generator, dtype=torch.float64).to(output.dtype)
    return torch.autograd.grad((output * weight).sum(), inputs)


def check_against_reference(
    packed: PackedTree, inputs: tuple[Tensor, ...], **layer: int | Tensor | None
) -> None:
    """float64: output and all gradients within 1e-10."""
    leaves = list(inputs) + [x for x in layer.values() if isinstance(x, Tensor)]
    ours = slices.attend(*inputs, packed, scale=0.3, **layer)
    defined = reference.attend(*inputs, packed, scale=0.3, **layer)
    assert torch.allclose(ours, defined, rtol=0, atol=1e-10)
    pairs = zip(gradients(ours, *leaves), gradients(defined, *leaves), strict=True)
    for one, other in pairs:
        assert torch.allclose(one, other, rtol=0, atol=1e-10)


@pytest.mark.parametrize("layer", [{}, {"window": 4}, {"chunk": 5}, {"window": 3, "chunk": 8}])
@pytest.mark.parametrize("name", FAMILY)
def test_family_equals_the_reference(
    name: str, layer: dict[str, int], make_inputs: Callable[..., tuple[Tensor, ...]]
) -> None:
    packed = pack_tree(build_prefix_tree(tree_family()[name]))
    check_against_reference(packed, make_inputs(packed.num_tokens), **layer)


def test_sinks_equal_the_reference(make_inputs: Callable[..., tuple[Tensor, ...]]) -> None:
    for name in ("uneven", "comb", "branch_at_129"):
        packed = pack_tree(build_prefix_tree(tree_family()[name]))
        sinks = torch.randn(4, dtype=torch.float64).requires_grad_()
        inputs = make_inputs(packed.num_tokens)
        check_against_reference(packed, inputs, sinks=sinks)
        check_against_reference(packed, inputs, sinks=sinks, window=4)


@pytest.mark.parametrize("sizes", [(8, 5), (5, 8), (16, 16)])
def test_value_size_may_differ_from_key_size(
    sizes: tuple[int, int], make_inputs: Callable[..., tuple[Tensor, ...]]
) -> None:
    packed = pack_tree(build_prefix_tree(tree_family()["uneven"]))
    inputs = make_inputs(packed.num_tokens, size=sizes[0], value_size=sizes[1])
    check_against_reference(packed, inputs)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_grouped_heads_equal_repeated_ones(
    kv_heads: int, make_inputs: Callable[..., tuple[Tensor, ...]]
) -> None:
    packed = pack_tree(build_prefix_tree(random_forest(np.random.default_rng(5))))
    check_against_reference(packed, make_inputs(packed.num_tokens, kv_heads=kv_heads))


def test_fused_kernel_takes_grouped_heads_without_a_race(
    make_inputs: Callable[..., tuple[Tensor, ...]],
) -> None:
    query, key, value = (x.detach() for x in make_inputs(300, heads=8, kv_heads=2, size=16))
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        output, logsumexp = kernels.FUSED_CPU.forward(query, key, value, True, None, 0.25)
        grad = torch.randn_like(output)
        arguments = (grad, query, key, value, output, logsumexp, True, None, 0.25)
        expected = kernels.MATMUL.backward(*arguments)
        for _ in range(20):
            for one, other in zip(kernels.FUSED_CPU.backward(*arguments), expected, strict=True):
                assert torch.allclose(one, other, rtol=0, atol=1e-10)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("name", ["uneven", "branch_at_128", "empty_sequence"])
def test_matmul_kernel_gives_what_the_fused_one_gives(
    name: str,
    make_inputs: Callable[..., tuple[Tensor, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packed = pack_tree(build_prefix_tree(tree_family()[name]))
    inputs = make_inputs(packed.num_tokens)
    fused = slices.attend(*inputs, packed, scale=0.3, window=6)
    expected = (fused, *gradients(fused, *inputs))
    monkeypatch.setattr(slices, "choose_kernel", lambda device, softcap: kernels.MATMUL)
    plain = slices.attend(*inputs, packed, scale=0.3, window=6)
    for one, other in zip((plain, *gradients(plain, *inputs)), expected, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["uneven", "comb", "branch_at_128"])
@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("at_once", [1 << 20, 1])
def test_capped_scores_equal_the_reference(
    name: str,
    window: int | None,
    at_once: int,
    make_inputs: Callable[..., tuple[Tensor, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In one block of queries and in many."""
    monkeypatch.setattr(kernels, "SCORES_AT_ONCE", at_once)
    packed = pack_tree(build_prefix_tree(tree_family()[name]))
    inputs = make_inputs(packed.num_tokens, kv_heads=2)
    sinks = torch.randn(4, dtype=torch.float64, requires_grad=True)
    options = {"scale": 2.0, "window": window, "softcap": 1.5, "sinks": sinks}
    capped = slices.attend(*inputs, packed, **options)
    expected = reference.attend(*inputs, packed, **options)
    uncapped = slices.attend(*inputs, packed, scale=2.0, window=window, sinks=sinks)
    assert not torch.allclose(capped, uncapped, rtol=0, atol=1e-3)
    for one, other in zip(
        (capped, *gradients(capped, *inputs, sinks)),
        (expected, *gradients(expected, *inputs, sinks)),
        strict=True,
    ):
        assert torch.allclose(one, other, rtol=0, atol=1e-10)


def test_capped_scores_have_the_gradients_of_finite_differences(
    make_inputs: Callable[..., tuple[Tensor, ...]],
) -> None:
    packed = pack_tree(build_prefix_tree([[1, 2, 3, 4], [1, 2, 5], [1, 2, 5, 6, 7], [8, 9]]))
    inputs = make_inputs(packed.num_tokens, size=3)
    assert torch.autograd.gradcheck(
        lambda query, key, value: slices.attend(query, key, value, packed, scale=1.0, softcap=0.7),
        inputs,
    )


def test_equals_attention_of_each_sequence_alone(
    make_inputs: Callable[..., tuple[Tensor, ...]],
) -> None:
    sequences = random_forest(np.random.default_rng(3))
    tree = build_prefix_tree(sequences)
    query, key, value = make_inputs(tree.num_tokens, kv_heads=4)
    output = slices.attend(query, key, value, pack_tree(tree), scale=8**-0.5)
    for number in range(len(sequences)):
        place = torch.tensor(tree.positions(number))
        alone = F.scaled_dot_product_attention(
            query[:, :, place], key[:, :, place], value[:, :, place], is_causal=True
        )
        assert torch.allclose(output[:, :, place], alone, rtol=0, atol=1e-10)


@pytest.mark.parametrize("sinks", [False, True])
def test_gradients_are_those_of_finite_differences(
    sinks: bool, make_inputs: Callable[..., tuple[Tensor, ...]]
) -> None:
    packed = pack_tree(build_prefix_tree([[1, 2, 3, 4], [1, 2, 5], [1, 2, 5, 6, 7], [8, 9]]))
    inputs = make_inputs(packed.num_tokens, size=3)
    sink = torch.randn(4, dtype=torch.float64, requires_grad=True) if sinks else None

    def attend(query: Tensor, key: Tensor, value: Tensor, sink: Tensor | None) -> Tensor:
        return slices.attend(query, key, value, packed, scale=0.5, window=3, sinks=sink)

    assert torch.autograd.gradcheck(attend, (*inputs, sink))


def test_changing_a_sibling_moves_nothing_bit_for_bit(
    make_inputs: Callable[..., tuple[Tensor, ...]],
) -> None:
    tree = build_prefix_tree(tree_family()["uneven"])
    packed = pack_tree(tree)
    query, key, value = (x.detach() for x in make_inputs(tree.num_tokens))
    before = slices.attend(query, key, value, packed, scale=0.3)
    changed = int(tree.positions(0)[-1])
    key[:, :, changed] += 100.0
    value[:, :, changed] += 100.0
    after = slices.attend(query, key, value, packed, scale=0.3)
    others = torch.arange(tree.num_tokens) != changed
    assert torch.equal(before[:, :, others], after[:, :, others])
    assert not torch.equal(before[:, :, changed], after[:, :, changed])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounding_is_that_of_each_sequence_alone(
    dtype: torch.dtype, make_inputs: Callable[..., tuple[Tensor, ...]]
) -> None:
    """Both are judged by float64: at most 1.1 times as far off as plain attention."""
    sequences = [[*range(100), 100 + leaf, *range(20)] for leaf in range(8)]
    tree = build_prefix_tree(sequences)
    packed = pack_tree(tree)
    inputs = make_inputs(tree.num_tokens, kv_heads=4, size=32, dtype=dtype)
    exact = tuple(x.detach().double().requires_grad_() for x in inputs)
    truth = slices.attend(*exact, packed, scale=0.2)
    ours = slices.attend(*inputs, packed, scale=0.2)
    alone = torch.zeros_like(ours)
    for number in range(len(sequences)):
        place = torch.tensor(tree.positions(number))
        query, key, value = (x[:, :, place] for x in inputs)
        alone[:, :, place] = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=0.2
        )
    assert (ours - truth).norm() <= 1.1 * (alone - truth).norm()
    truths = gradients(truth, *exact)
    for one, other, true in zip(
        gradients(ours, *inputs), gradients(alone, *inputs), truths, strict=True
    ):
        assert (one - true).norm() <= 1.1 * (other - true).norm()


def test_masks_are_made_once_for_all_layers(
    make_inputs: Callable[..., tuple[Tensor, ...]],
) -> None:
    packed = pack_tree(build_prefix_tree(tree_family()["star"]))
    inputs = make_inputs(packed.num_tokens)
    slices.attend(*inputs, packed, scale=0.3)
    plans = dict(packed.plans)
    slices.attend(*inputs, packed, scale=0.3)
    assert packed.plans == plans
