from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

Gradients = dict[str, Tensor]


@pytest.fixture
def logits_alone() -> Callable[..., list[Tensor]]:
    """Logits [L, V] of each sequence by itself through the plain model."""

    def compute(model: nn.Module, sequences: Sequence[Sequence[int]]) -> list[Tensor]:
        with torch.no_grad():
            return [
                model(input_ids=torch.tensor([list(sequence)]), use_cache=False).logits[0]
                for sequence in sequences
            ]

    return compute


@pytest.fixture
def train_alone() -> Callable[..., tuple[float, Gradients]]:
    """Loss and gradients of sum(weight x -log p), each sequence alone through the plain model."""

    def compute(
        model: nn.Module, sequences: Sequence[Sequence[int]], weights: Sequence[Sequence[float]]
    ) -> tuple[float, Gradients]:
        model.zero_grad()
        total = 0.0
        for sequence, own in zip(sequences, weights, strict=True):
            tokens = torch.tensor(list(sequence))
            logits = model(input_ids=tokens[None], use_cache=False).logits[0]
            logprobs = torch.log_softmax(logits[:-1], -1)[range(len(tokens) - 1), tokens[1:]]
            loss = -(logprobs * torch.tensor(own, dtype=logprobs.dtype)).sum()
            loss.backward()
            total += loss.item()
        return total, take_gradients(model)

    return compute


@pytest.fixture
def gradients_of() -> Callable[..., Gradients]:
    """Gradients of a loss."""

    def compute(model: nn.Module, loss: Tensor) -> Gradients:
        model.zero_grad()
        loss.backward()
        return take_gradients(model)

    return compute


@pytest.fixture
def assert_same_gradients() -> Callable[..., None]:
    """All gradients within a part of the largest."""

    def check(one: Gradients, other: Gradients, part: float) -> None:
        largest = max(float(gradient.abs().max()) for gradient in other.values())
        assert largest > 0
        for name, gradient in one.items():
            assert float((gradient - other[name]).abs().max()) <= part * largest, name

    return check


def take_gradients(model: nn.Module) -> Gradients:
    found = {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        for name, parameter in model.named_parameters()
    }
    model.zero_grad()
    return found
