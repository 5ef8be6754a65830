"""The baseline that tree training is held against: each sequence alone through the plain model.

Nothing of the package's own is used here but the type of a sample: neither trees nor targets nor
windows. Log-probabilities, the loss and its normaliser are computed again from the list of samples.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from treetrain.data.sample import Sample

Floats = NDArray[np.float64]

ROWS = 256  # positions whose logits are widened at a time


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a step over all sequences computes, the gradients aside.

    Attributes:
        logprobs: log-probability of each token of each sequence after the first, in nats, one
            tensor [max(L - 1, 0)] per sequence in input order, float64 on the CPU.
        loss: the loss of the step, nats.
    """

    logprobs: list[Tensor]
    loss: float


def compute_separately(
    model: nn.Module,
    samples: Sequence[Sample],
    coefficients: Sequence[Floats],
    *,
    on_sequence: Callable[[], None] = lambda: None,
) -> Outcome:
    """Run each sequence alone, forward and backward, without padding.

    Gradients are added to the parameters' `grad`, one sequence after the other.

    Args:
        model: a plain Hugging Face causal model.
        samples: the sequences.
        coefficients: what each token's -log p is multiplied by in the loss, [L - 1] per sequence.
        on_sequence: called after each sequence.

    Returns:
        Log-probabilities and loss.
    """
    device = next(model.parameters()).device
    logprobs: list[Tensor] = []
    loss = 0.0
    for sample, factors in zip(samples, coefficients, strict=True):
        if len(sample) < 2:
            logprobs.append(torch.zeros(0, dtype=torch.float64))
            continue
        tokens = torch.tensor(sample.tokens, device=device)
        trained = bool(np.any(factors))
        with torch.set_grad_enabled(trained):
            logits = model(input_ids=tokens[None], use_cache=False).logits[0, :-1]
            losses = _token_losses(logits, tokens[1:])
            if trained:
                part = (losses * torch.tensor(factors, device=device)).sum()
                part.backward()
                loss += float(part.detach())
        logprobs.append(-losses.detach().cpu())
        on_sequence()
    return Outcome(logprobs, loss)


def _token_losses(logits: Tensor, tokens: Tensor) -> Tensor:
    # In float64: summing over a vocabulary of 50,000 in float32 is off by 2e-5 nats, and by the sum
    # of that over all tokens in the gradients, which would be taken for an error of the trees.
    parts = zip(logits.split(ROWS), tokens.split(ROWS), strict=True)
    cross_entropy = nn.functional.cross_entropy
    return torch.cat([cross_entropy(own.double(), ids, reduction="none") for own, ids in parts])


def loss_coefficients(samples: Sequence[Sample], reduction: str | float) -> list[Floats]:
    """Work out what each token's -log p is multiplied by.

    Args:
        samples: all sequences of the step.
        reduction: as in `treetrain.losses.reductions`.

    Returns:
        One array per sequence, [max(L - 1, 0)] float64, for the tokens after the first.

    Raises:
        ValueError: the reduction is unknown, or a sum of weights to divide by is not above 0.
    """
    weights = [sample.weights[1:] for sample in samples]
    count = len(samples)
    if reduction == "sum":
        return weights
    if reduction == "path_mean":
        return [own / count for own in weights]
    if reduction == "token_mean":
        total = sum(own.sum() for own in weights)
        return [_divided(own, total) for own in weights]
    if reduction == "sequence_mean":
        return [_divided(own, own.sum() * count) for own in weights]
    if reduction == "trajectory_mean":
        names: list[Hashable] = [
            (sample.group, sample.trajectory) if sample.trajectory is not None else ("alone", index)
            for index, sample in enumerate(samples)
        ]
        totals: dict[Hashable, float] = dict.fromkeys(names, 0.0)
        for name, own in zip(names, weights, strict=True):
            totals[name] += float(own.sum())
        return [
            _divided(own, totals[name] * len(totals))
            for name, own in zip(names, weights, strict=True)
        ]
    if isinstance(reduction, str) or not reduction > 0:
        raise ValueError(
            "reduction must be 'path_mean', 'sequence_mean', 'token_mean', 'trajectory_mean', "
            f"'sum' or a number above 0, got {reduction!r}"
        )
    return [own / reduction for own in weights]


def _divided(weights: Floats, total: float) -> Floats:
    if not weights.any():
        return weights
    if not total > 0:
        raise ValueError(
            f"weights must sum to more than 0 to be divided by their sum, got {total}; choose "
            "reduction 'sum', 'path_mean' or a number"
        )
    return weights / total
