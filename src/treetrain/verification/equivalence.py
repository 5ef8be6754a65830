"""The report of a check of tree training against separate training."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from treetrain.verification.comparison import Comparison
from treetrain.verification.leaks import LeakCheck
from treetrain.verification.reach import Reach
from treetrain.wording import say_count

LEGEND = (
    "step: parameters after one step of SGD; order: log-probabilities, sequences turned round",
    "sibling to own_target: states that an altered token must not move; ancestor: those it must",
)


@dataclass(frozen=True)
class WorstToken:
    """The token whose log-probability differs most.

    Attributes:
        sequence: index of the sample.
        place: place in it; its predictor is the token before.
        token: its id.
        source: file and line of the sample, or None.
        separate: log-probability in separate training, nats.
        tree: log-probability in tree training, nats.
    """

    sequence: int
    place: int
    token: int
    source: str | None
    separate: float
    tree: float

    def __str__(self) -> str:
        named = self.source and self.source != f"samples[{self.sequence}]"
        source = f" ({self.source})" if named else ""
        return (
            f"token {self.token} at place {self.place} of samples[{self.sequence}]{source}: "
            f"{self.separate:.6g} separate, {self.tree:.6g} tree"
        )


@dataclass(frozen=True)
class Report:
    """Tree training against each sequence alone through the plain model.

    Attributes:
        dtype: dtype of the computation, for example "float32".
        reduction: reduction of the loss.
        sequences: number of sequences.
        flat_tokens: tokens of all sequences.
        tree_tokens: tokens computed, all rows together.
        partitions: parts in which trees larger than `max_tokens` ran; 0 where all ran undivided.
        split_tokens: tokens computed again because a tree larger than `max_tokens` was split into
            rows, which is done where a model cannot be partitioned.
        loss_separate: loss of separate training, nats.
        loss_tree: loss of tree training, nats.
        logprobs: of every token with a predecessor, nats.
        loss: of the step, nats.
        gradients: of every trainable parameter.
        step: every trainable parameter after one step of plain gradient descent.
        structure: narrow dtypes only: log-probabilities and gradients of the same trees in float64.
        leak_checks: what moved when a token was altered, or the order of the sequences.
        reach: windows and chunks of the model that the paths go beyond or not, and experts chosen.
        learning_rate: of the step.
        worst_token: the token whose log-probability differs most; None without any target.
        worst_parameter: name of the parameter whose gradient differs most; None without gradients.
    """

    dtype: str
    reduction: str | float
    sequences: int
    flat_tokens: int
    tree_tokens: int
    partitions: int
    split_tokens: int
    loss_separate: float
    loss_tree: float
    logprobs: Comparison
    loss: Comparison
    gradients: Comparison
    step: Comparison
    structure: tuple[Comparison, ...]
    leak_checks: tuple[LeakCheck, ...]
    reach: tuple[Reach, ...]
    learning_rate: float
    worst_token: WorstToken | None
    worst_parameter: str | None

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """All comparisons, the structural ones last."""
        return (self.logprobs, self.loss, self.gradients, self.step, *self.structure)

    @property
    def leaks(self) -> list[str]:
        """A sentence for each leak that was found."""
        return [str(check) for check in self.leak_checks if not check.passes]

    @property
    def failures(self) -> list[str]:
        """A sentence for each comparison or leak check that failed."""
        failed = [str(comparison) for comparison in self.comparisons if not comparison.passes]
        return failed + self.leaks

    @property
    def equal(self) -> bool:
        """Whether everything is within the dtype's floor and nothing leaks."""
        return not self.failures

    def to_dict(self) -> dict[str, Any]:
        """Give the report as JSON values.

        Returns:
            The figures; `leaks` lists sentences and is empty where nothing leaked. A figure that is
            not finite is None, which JSON can hold.
        """
        values = {
            "equal": self.equal,
            "dtype": self.dtype,
            "reduction": self.reduction,
            "sequences": self.sequences,
            "flat_tokens": self.flat_tokens,
            "tree_tokens": self.tree_tokens,
            "partitions": self.partitions,
            "split_tokens": self.split_tokens,
            "loss": {"separate": self.loss_separate, "tree": self.loss_tree},
            "logprob_max_abs_error": self.logprobs.max_abs_error,
            "gradient_max_relative_error": self.gradients.max_relative_error,
            "step_max_abs_error": self.step.max_abs_error,
            "leaks": self.leaks,
            "step_optimizer": {"name": "SGD", "learning_rate": self.learning_rate},
            "comparisons": [
                {
                    "quantity": comparison.quantity,
                    "passes": comparison.passes,
                    "max_abs_error": comparison.max_abs_error,
                    "max_relative_error": comparison.max_relative_error,
                    "error": comparison.error,
                    "allowed": comparison.allowed,
                    "separate_error": comparison.floor,
                }
                for comparison in self.comparisons
            ],
            "leak_checks": [
                {
                    "rule": check.rule,
                    "passes": check.passes,
                    "moved": check.moved if check.places else None,
                    "allowed": check.allowed,
                    "places": check.places,
                }
                for check in self.leak_checks
            ],
            "reach": [
                {
                    "feature": one.feature,
                    "size": one.size,
                    "layers": one.layers,
                    "tested": one.tested,
                    "longest_path" if one.total is None else "fewest_chosen": one.found,
                    **({} if one.total is None else {"experts": one.total}),
                }
                for one in self.reach
            ],
            "worst_token": None if self.worst_token is None else asdict(self.worst_token),
            "worst_parameter": self.worst_parameter,
            "failures": self.failures,
        }
        return _finite(values)

    def lines(self) -> Iterator[str]:
        """Give the report as lines of text.

        Yields:
            One line after the other.
        """
        verdict = "equal" if self.equal else "NOT EQUAL"
        cut = f" in {say_count(self.partitions, 'partition')}" if self.partitions else ""
        yield (
            f"{verdict}: {say_count(self.sequences, 'sequence')}, "
            f"{self.flat_tokens:,} flat tokens, {self.tree_tokens:,} tree tokens{cut}, "
            f"{self.dtype}, reduction {self.reduction}"
        )
        yield f"loss            separate {self.loss_separate:.9g}, tree {self.loss_tree:.9g}"
        for comparison in self.comparisons:
            mark = "" if comparison.passes else "   <-- too large"
            floor = "" if comparison.floor is None else f", separate itself {comparison.floor:.2g}"
            yield (
                f"{comparison.quantity:<15} error {comparison.error:.2g}, allowed "
                f"{comparison.allowed:.2g}{floor} (largest difference "
                f"{comparison.max_abs_error:.2g} of {comparison.largest:.3g}){mark}"
            )
        for check in self.leak_checks:
            if not check.places:
                yield f"{check.rule:<15} not tested: these sequences hold no place for it"
                continue
            state = "ok" if check.passes else f"LEAK   {check}"
            yield f"{check.rule:<15} moved {check.moved:.2g}, {check.places} places, {state}"
        for one in self.reach:
            yield f"{one.name:<15} {one}"
        if self.split_tokens:
            yield (
                f"{self.split_tokens:,} tokens were computed again: this model takes trees as one "
                "dense mask, so that a larger one was split into rows and not cut into partitions"
            )
        if self.flat_tokens == self.tree_tokens:
            yield "nothing is shared by these sequences: this says little of trees, choose others"
        yield from self.worst_lines()
        yield from LEGEND

    def worst_lines(self) -> Iterator[str]:
        """Name the token and the parameter that differ most.

        Yields:
            A line for each.
        """
        if self.worst_token is not None:
            yield f"worst token     {self.worst_token}"
        if self.worst_parameter is not None:
            worst = self.gradients.worst
            assert worst is not None
            yield (
                f"worst parameter {self.worst_parameter}: gradient {worst.separate:.6g} separate, "
                f"{worst.tree:.6g} tree, at flat index {worst.index}"
            )

    def __str__(self) -> str:
        return "\n".join(self.lines())


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
