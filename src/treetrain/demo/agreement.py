"""Trains one model twice, on trees and on each sequence alone, and compares the parameters."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from treetrain.data.sample import Sample
from treetrain.demo.measure import separate_step, tree_step
from treetrain.models.prepare import prepare


@dataclass(frozen=True)
class Agreement:
    """Parameters after the same steps both ways.

    Attributes:
        steps: steps of gradient descent with momentum.
        sequences: sequences of each step.
        parameters: number of parameters that were compared.
        largest_difference: between a parameter trained on trees and the same one trained on each
            sequence alone.
        largest_change: of a parameter, by separate training.
    """

    steps: int
    sequences: int
    parameters: int
    largest_difference: float
    largest_change: float


def compare_ways(
    model: PreTrainedModel,
    samples: Sequence[Sample],
    *,
    steps: int,
    learning_rate: float,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Agreement:
    """Takes the same steps from the same weights, both ways.

    The optimizer is SGD with momentum: AdamW's first steps are the learning rate times the sign of
    the gradient, so that a gradient of nearly 0 moves a parameter either way by rounding alone.

    Args:
        model: a plain model; both ways start from copies of it.
        samples: the sequences of every step.
        steps: number of steps.
        learning_rate: of SGD.
        on_progress: called after each step with how many are done, and of how many.

    Returns:
        How far apart the parameters are afterwards.
    """
    plain, packed = copy.deepcopy(model), copy.deepcopy(model)
    handle = prepare(packed)
    done = 0
    for own, step in ((plain, separate_step), (packed, tree_step)):
        optimizer = torch.optim.SGD(own.parameters(), lr=learning_rate, momentum=0.9)
        for _ in range(steps):
            step(own, samples)
            optimizer.step()
            optimizer.zero_grad()
            done += 1
            on_progress(done, 2 * steps)
    handle.undo()
    separate = dict(plain.named_parameters())
    with torch.no_grad():
        differences = [
            float((tree - separate[name]).abs().max()) for name, tree in packed.named_parameters()
        ]
        changes = [
            float((separate[name] - start).abs().max()) for name, start in model.named_parameters()
        ]
    return Agreement(
        steps=steps,
        sequences=len(samples),
        parameters=sum(parameter.numel() for parameter in separate.values()),
        largest_difference=max(differences),
        largest_change=max(changes),
    )
