from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn


class ToyHead:
    def __init__(self, layer):
        self.layer = layer

    @property
    def parameters(self):
        return list(self.layer.parameters())

    def __call__(self, hidden):
        return self.layer(hidden)


class ToyModel(nn.Module):
    """A float64 model whose state at a token is a function of the path to it and nothing else.

    `forward` knows nothing of trees and makes the baseline; `hidden_states` follows predecessors.
    """

    def __init__(self, vocabulary=13, channels=6):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, channels, dtype=torch.float64)
        self.mix = nn.Linear(channels, channels, dtype=torch.float64)
        self.layer = nn.Linear(channels, vocabulary, dtype=torch.float64)
        self.head = ToyHead(self.layer)

    def step(self, token, state):
        new = self.embedding(token)
        return new if state is None else torch.tanh(new + self.mix(state))

    def forward(self, tokens):
        states = []
        for token in tokens:
            states.append(self.step(token, states[-1] if states else None))
        return self.layer(torch.stack(states))

    def hidden_states(self, packed):
        states = []
        for token, before in zip(packed.tokens[0], packed.tree.predecessors, strict=True):
            states.append(self.step(token, states[before] if before >= 0 else None))
        if not states:
            return self.embedding(packed.tokens[0])
        return torch.stack(states)


@pytest.fixture
def toy(monkeypatch):
    """A toy model that the training functions take for a prepared one."""
    for module in ("logprobs", "sft"):
        monkeypatch.setattr(f"treetrain.losses.{module}.find_prepared", lambda model: model)
    torch.manual_seed(0)
    return ToyModel()


@pytest.fixture
def alone():
    """Baseline: log-probabilities and entropies of one sequence by itself, [L - 1] each."""

    def compute(model, tokens, temperature=1.0):
        tokens = torch.tensor(list(tokens))
        if len(tokens) < 2:
            return torch.zeros(0, dtype=torch.float64), torch.zeros(0, dtype=torch.float64)
        logp = F.log_softmax(model(tokens)[:-1] / temperature, -1)
        picked = logp.gather(1, tokens[1:, None])[:, 0]
        return picked, -(logp.exp() * logp).sum(-1)

    return compute


@pytest.fixture
def gradients():
    """Gradient of a loss for every parameter of a model, zeros where it does not depend on one."""

    def compute(loss, model):
        parameters = list(model.parameters())
        found = torch.autograd.grad(loss, parameters, allow_unused=True)
        return [
            torch.zeros_like(parameter) if gradient is None else gradient
            for gradient, parameter in zip(found, parameters, strict=True)
        ]

    return compute


@pytest.fixture
def assert_equal():
    """Tensors agree to float64's limit of the ladder, 1e-10."""

    def check(found, expected):
        for ours, theirs in zip(found, expected, strict=True):
            assert ours.shape == theirs.shape
            assert (ours - theirs).abs().max().item() <= 1e-10 if ours.numel() else True

    return check
