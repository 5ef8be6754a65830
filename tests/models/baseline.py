from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from treetrain.models.prepared import PreparedModel
from treetrain.packing.packed_tree import pack_tree
from treetrain.tree.build import build_prefix_tree


def logits_alone(model: PreTrainedModel, sequences: Sequence[list[int]]) -> list[Tensor]:
    """Logits [L, V] of each sequence alone through a model nobody has prepared."""
    assert not model.config._attn_implementation.startswith("treetrain")
    return [
        model(input_ids=torch.tensor([sequence]), use_cache=False).logits[0]
        for sequence in sequences
        if sequence
    ]


def logits_on_tree(prepared: PreparedModel, sequences: Sequence[list[int]]) -> list[Tensor]:
    """Logits [L, V] of each sequence from one tree call."""
    tree = build_prefix_tree(sequences)
    logits = prepared.head(prepared.hidden_states(pack_tree(tree)))
    return [
        logits[torch.tensor(tree.positions(number))]
        for number, sequence in enumerate(sequences)
        if sequence
    ]


def gradients(model: PreTrainedModel, logits: list[Tensor]) -> dict[str, Tensor]:
    """Gradients of all parameters, of a loss in which each logit has its own weight."""
    model.zero_grad()
    generator = torch.Generator().manual_seed(5)
    loss = torch.zeros(())
    for one in logits:
        loss = loss + (one * torch.randn(one.shape, generator=generator)).sum()
    loss.backward()
    return {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        for name, parameter in model.named_parameters()
    }


def check_equal(
    one: list[Tensor], other: list[Tensor], grads: dict[str, Tensor], others: dict[str, Tensor]
) -> None:
    """Logits and all gradients within 1e-5 of the largest, the ladder's step for float32."""
    largest = max(float(x.detach().abs().max()) for x in other)
    for x, y in zip(one, other, strict=True):
        assert float((x - y).detach().abs().max()) <= 1e-5 * largest
    scale = max(float(x.abs().max()) for x in others.values())
    assert scale > 0
    worst = max(grads, key=lambda name: float((grads[name] - others[name]).abs().max()))
    assert float((grads[worst] - others[worst]).abs().max()) <= 1e-5 * scale, worst
