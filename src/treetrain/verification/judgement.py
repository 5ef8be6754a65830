"""Judges a step computed both ways: log-probabilities, loss, gradients, parameters after a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from treetrain.verification.baseline import Floats
from treetrain.verification.both_ways import StepResult
from treetrain.verification.comparison import Comparison, Judge


@dataclass(frozen=True)
class Judgement:
    """Every comparison of a step.

    Attributes:
        logprobs: of every token with a predecessor, nats.
        loss: of the step, nats.
        gradients: of every trainable parameter.
        step: every trainable parameter after one step.
        order: log-probabilities with the sequences in reverse order, nats.
    """

    logprobs: Comparison
    loss: Comparison
    gradients: Comparison
    step: Comparison
    order: Comparison

    @property
    def passes(self) -> bool:
        """Whether all of them pass."""
        found = (self.logprobs, self.loss, self.gradients, self.step, self.order)
        return all(comparison.passes for comparison in found)


@dataclass(frozen=True, eq=False)
class StepPair:
    """A step computed both ways, with what is needed to judge it.

    Attributes:
        separate: each sequence alone.
        tree: on trees.
        turned: log-probabilities on trees, the sequences handed over in reverse order.
        model: the model; its weights are read only.
        coefficients: what each token's -log p is multiplied by, [L - 1] per sequence.
        learning_rate: of the optimiser step.
    """

    separate: StepResult
    tree: StepResult
    turned: StepResult
    model: nn.Module
    coefficients: Sequence[Floats]
    learning_rate: float

    def judge(self, judge: Judge, truth: StepResult | None) -> Judgement:
        """Make every comparison.

        Args:
            judge: the dtype's rule.
            truth: the step in float64, where the rule needs it.

        Returns:
            The comparisons.
        """
        tree, separate = self.tree, self.separate
        logprobs = None if truth is None else truth.logprobs
        gradients = None if truth is None else truth.gradients
        return Judgement(
            judge.compare("logprobs", tree.logprobs, separate.logprobs, truth=logprobs),
            compare_losses(judge, tree, separate, truth=truth, coefficients=self.coefficients),
            judge.compare("gradients", tree.gradients, separate.gradients, truth=gradients),
            compare_steps(
                judge,
                tree,
                separate,
                truth=truth,
                model=self.model,
                learning_rate=self.learning_rate,
            ),
            judge.compare("order", self.turned.logprobs, separate.logprobs, truth=logprobs),
        )


def compare_losses(
    judge: Judge,
    tree: StepResult,
    separate: StepResult,
    *,
    truth: StepResult | None,
    coefficients: Sequence[Floats],
) -> Comparison:
    """Compare the loss, which may be off by what its terms together may be off by.

    Args:
        judge: the dtype's rule.
        tree: the step on trees.
        separate: the step on separate sequences.
        truth: the step in float64, where the rule needs it.
        coefficients: what each token's -log p is multiplied by, [L - 1] per sequence.

    Returns:
        The judgement. `largest` is the sum of the terms' absolute values: a loss may cancel.
    """

    def weigh(values: Sequence[Tensor]) -> float:
        pairs = zip(values, coefficients, strict=True)
        return sum(float((value.abs() * torch.tensor(c).abs()).sum()) for value, c in pairs)

    logprobs = separate.outcome.logprobs
    terms = weigh(logprobs)
    difference = abs(tree.outcome.loss - separate.outcome.loss)
    if judge.tolerance is not None:
        allowed = judge.tolerance * terms
        return Comparison("loss", difference, terms, difference, allowed, None, None)
    assert truth is not None
    right = truth.outcome
    floor = weigh([a - b for a, b in zip(logprobs, right.logprobs, strict=True)])
    error = abs(tree.outcome.loss - right.loss)
    return Comparison("loss", difference, terms, error, judge.factor * floor, floor, None)


def compare_steps(
    judge: Judge,
    tree: StepResult,
    separate: StepResult,
    *,
    truth: StepResult | None,
    model: nn.Module,
    learning_rate: float,
) -> Comparison:
    """Compare every parameter after one step of SGD, taken on copies.

    Args:
        judge: the dtype's rule.
        tree: the step on trees.
        separate: the step on separate sequences.
        truth: the step in float64, where the rule needs it.
        model: the model; its weights are read only.
        learning_rate: of the step.

    Returns:
        The judgement. Beyond the learning rate times the gradient's tolerance, a parameter may be
        off by one rounding of the largest parameter.
    """
    after = _Stepped(model, separate.gradients, learning_rate)
    stepped = _Stepped(model, tree.gradients, learning_rate)
    if judge.tolerance is None:
        assert truth is not None
        right = _Stepped(model, truth.gradients, learning_rate, torch.float64)
        return judge.compare("step", stepped, after, truth=right)
    gradient = max(_largest(value) for value in separate.gradients.values())
    largest = rounding = 0.0
    for value in after.values():
        largest, rounding = max(largest, _largest(value)), max(rounding, _epsilon(value))
    allowed = judge.tolerance * learning_rate * gradient + rounding * largest
    return Judge(0.0, judge.targets).compare("step", stepped, after, extra=allowed)


class _Stepped(Mapping[str, Tensor]):
    """Parameters after a step of SGD, one copy at a time, made when it is asked for."""

    def __init__(
        self,
        model: nn.Module,
        gradients: Mapping[str, Tensor],
        learning_rate: float,
        dtype: torch.dtype | None = None,
    ) -> None:
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._gradients = gradients
        self._learning_rate = learning_rate
        self._dtype = dtype

    def __getitem__(self, name: str) -> Tensor:
        parameter = self._parameters[name].detach()
        twin = parameter.to(dtype=self._dtype, copy=True).requires_grad_()
        twin.grad = self._gradients[name].to(twin.dtype)
        torch.optim.SGD([twin], lr=self._learning_rate).step()
        return twin.detach()

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)


def _epsilon(value: Tensor) -> float:
    return torch.finfo(value.dtype).eps


def _largest(value: Tensor) -> float:
    return float(value.abs().max()) if value.numel() else 0.0
