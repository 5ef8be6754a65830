from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from treetrain.attention.api import tree_attention
from treetrain.attention.once import differentiable_once
from treetrain.losses.logprobs import sequence_logprobs
from treetrain.losses.sft import sft_loss
from treetrain.models.prepare import prepare
from treetrain.packing.batch import pack
from treetrain.packing.packed_tree import pack_tree
from treetrain.testing.models import make_tiny_model
from treetrain.testing.trees import worked_example
from treetrain.tree.build import build_prefix_tree


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, unused: Tensor | None) -> Tensor:
        ctx.save_for_backward(value)
        return value**2

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return 2 * ctx.saved_tensors[0] * grads[0], None


def test_a_second_derivative_of_a_constant_first_gradient_is_refused() -> None:
    value = torch.tensor(3.0, requires_grad=True)
    (gradient,) = torch.autograd.grad(Square.apply(value, None), value, create_graph=True)
    assert gradient.item() == 6.0
    with pytest.raises(RuntimeError, match="differentiated once"):
        torch.autograd.grad(gradient, value)


def test_a_graph_of_the_gradient_that_nobody_walks_harms_nothing() -> None:
    value = torch.tensor(3.0, requires_grad=True)
    Square.apply(value, None).backward(create_graph=True)
    assert value.grad is not None
    assert value.grad.item() == 6.0


def test_second_derivatives_of_attention_are_refused_by_name() -> None:
    packed = pack_tree(build_prefix_tree(worked_example()))
    query, key, value = (torch.randn(1, 2, 9, 4, requires_grad=True) for _ in range(3))
    output = tree_attention(query, key, value, packed, backend="slices")
    (gradient,) = torch.autograd.grad(output.sum(), query, create_graph=True)
    with pytest.raises(RuntimeError, match=r"differentiated once.*separate sequences"):
        gradient.sum().backward()


@pytest.mark.parametrize("backend", ["slices", "reference"])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("frozen", [True, False])
def test_second_derivatives_of_losses_are_refused_by_name(
    backend: str, fused: bool, frozen: bool
) -> None:
    model = make_tiny_model("llama")
    model.get_output_embeddings().requires_grad_(not frozen)
    prepare(model, backend)
    batch = pack(worked_example())
    loss = (
        sft_loss(model, batch, "sum") if fused else torch.cat(sequence_logprobs(model, batch)).sum()
    )
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(loss, parameters, create_graph=True)
    for place in (0, -1):
        for unused in (True, False):
            with pytest.raises(RuntimeError, match="differentiated once"):
                torch.autograd.grad(
                    gradients[place].square().sum(),
                    parameters,
                    retain_graph=True,
                    allow_unused=unused,
                )


@pytest.mark.parametrize("backend", ["slices", "reference"])
def test_a_graph_of_the_gradient_may_be_made_through_checkpointing(backend: str) -> None:
    gradients: list[list[Tensor]] = []
    for create_graph in (False, True):
        # Such a graph is walked in another order, which float32 shows on some processors.
        model = make_tiny_model("llama", dtype=torch.float64).train()
        model.gradient_checkpointing_enable({"use_reentrant": False})
        prepare(model, backend)
        loss = sft_loss(model, pack(worked_example()), "sum")
        gradients.append(
            list(torch.autograd.grad(loss, list(model.parameters()), create_graph=create_graph))
        )
    torch.testing.assert_close(*gradients)
