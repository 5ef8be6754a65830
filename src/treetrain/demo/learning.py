"""Trains the model of the built-in example on errands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from time import perf_counter

import torch
from transformers import PreTrainedModel

from treetrain.data.sample import Sample
from treetrain.demo.measure import tree_step
from treetrain.demo.plans import Plan
from treetrain.packing.batch import pack


@dataclass(frozen=True)
class Step:
    """One training step.

    Attributes:
        loss: mean over trained tokens, nats.
        seconds: how long it took, packing and the optimizer included.
        tree_tokens: tokens computed.
        flat_tokens: tokens that separate sequences would have computed.
    """

    loss: float
    seconds: float
    tree_tokens: int
    flat_tokens: int


def train(
    model: PreTrainedModel, errands: Sequence[Sequence[Sample]], plan: Plan
) -> Iterator[Step]:
    """Trains on errands, each once; the errands of a step are one tree.

    Args:
        model: a prepared model.
        errands: the sequences of each errand, in order.
        plan: number of steps, errands of each, and learning rates, which rise for a twentieth of
            the steps and fall over the second half.

    Yields:
        What each step did.
    """
    optimizers = make_optimizers(model, plan)
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(optimizer, partial(rate_at, steps=plan.steps))
        for optimizer in optimizers
    ]
    turns = iter(errands)
    for _ in range(plan.steps):
        own = islice(turns, plan.errands_per_step)
        samples = [replace(sample, group=None) for errand in own for sample in errand]
        start = perf_counter()
        loss = tree_step(model, samples)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
        model.zero_grad()
        seconds = perf_counter() - start
        tree = pack(samples).tree
        yield Step(loss, seconds, tree.num_tokens, int(tree.sequence_lengths.sum()))


def make_optimizers(model: PreTrainedModel, plan: Plan) -> list[torch.optim.Optimizer]:
    """Makes Muon for the matrices of the layers, and AdamW for the rest.

    From scratch, a model learns with Muon in half the steps to carry what it reads into a call.

    Args:
        model: the model.
        plan: the learning rates.

    Returns:
        AdamW, and Muon where the plan has a learning rate for it.
    """
    embeddings = (model.get_input_embeddings(), model.get_output_embeddings())
    outside = {id(p) for module in embeddings if module is not None for p in module.parameters()}
    rate = plan.matrix_learning_rate
    matrices, rest = [], []
    for parameter in model.parameters():
        inside = rate is not None and parameter.dim() == 2 and id(parameter) not in outside
        (matrices if inside else rest).append(parameter)
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(rest, lr=plan.learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
    ]
    if rate is not None:
        optimizers.append(torch.optim.Muon(matrices, lr=rate, weight_decay=0.0))
    return optimizers


def rate_at(step: int, *, steps: int) -> float:
    """Says what share of the learning rate a step takes.

    Args:
        step: number of the step, from 0.
        steps: steps in all.

    Returns:
        It rises over a twentieth of the steps, and falls to nothing over the second half.
    """
    return min(1.0, (step + 1) / (steps / 20), (steps - step) / (steps / 2))


def as_lines(steps: Sequence[Step]) -> list[dict[str, float]]:
    """Puts training steps into the lines that a run writes.

    Args:
        steps: the steps, in order.

    Returns:
        One object for each, with the names of `metrics.jsonl`.
    """
    return [
        {
            "step": number,
            **vars(step),
            "flat_tokens_per_second": step.flat_tokens / step.seconds,
            "tree_tokens_per_second": step.tree_tokens / step.seconds,
        }
        for number, step in enumerate(steps, 1)
    ]
