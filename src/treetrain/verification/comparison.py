"""How far two right computations may differ, and the judgement of one quantity.

float64 and float32 are judged against the separate computation: within 1e-10 and 1e-5 of the
quantity's largest value. Narrower dtypes are not, because two right bfloat16 answers differ by
more than many faults do: there the error against a float64 truth is held against the error that
separate training in the same dtype makes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

Values = Mapping[str, Tensor]

#: Part of the largest value by which right results may differ.
TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-5}

#: Largest error of a narrow dtype on a tree, in errors of the same dtype on separate sequences.
NARROW_FACTOR = 1.1


@dataclass(frozen=True)
class Worst:
    """Where the largest difference is.

    Attributes:
        name: key of the tensor.
        index: flat index into it.
        separate: its value there in separate training.
        tree: its value there in tree training.
    """

    name: str
    index: int
    separate: float
    tree: float


@dataclass(frozen=True)
class Comparison:
    """One quantity of tree training against separate training.

    Attributes:
        quantity: what was compared.
        max_abs_error: largest difference between tree and separate, in the quantity's unit.
        largest: largest absolute value of the separate computation.
        error: what is judged: `max_abs_error`, or, with a truth, the root mean square error against
            it.
        allowed: most that `error` may be.
        floor: with a truth, root mean square error of separate training; otherwise None.
        worst: where the largest difference is; None where nothing was compared.
    """

    quantity: str
    max_abs_error: float
    largest: float
    error: float
    allowed: float
    floor: float | None
    worst: Worst | None

    @property
    def passes(self) -> bool:
        """Whether the error is within what is allowed; not a number is not."""
        return self.error <= self.allowed

    @property
    def max_relative_error(self) -> float:
        """Largest difference over largest value; 0 where both are 0."""
        if self.largest:
            return self.max_abs_error / self.largest
        return 0.0 if self.max_abs_error == 0 else math.inf

    def __str__(self) -> str:
        floor = "" if self.floor is None else f", separate {self.floor:.2g}"
        return f"{self.quantity}: error {self.error:.2g}, allowed {self.allowed:.2g}{floor}"


@dataclass(frozen=True)
class Judge:
    """The rule that a dtype's results are judged by.

    Attributes:
        tolerance: part of the largest value that a difference may be; None: judge against a truth.
        targets: number of distinct targets, each an independent draw of a rounding error.
    """

    tolerance: float | None
    targets: int

    @property
    def factor(self) -> float:
        """Allowed error against the truth, in errors of separate training.

        1.1, times what chance does to the ratio of two root mean square errors over so many draws:
        its logarithm has a standard deviation of 1 / sqrt(draws), and three of them are allowed.
        """
        return NARROW_FACTOR * math.exp(3 / math.sqrt(max(self.targets, 1)))

    def compare(
        self,
        quantity: str,
        tree: Values,
        separate: Values,
        *,
        truth: Values | None = None,
        extra: float = 0.0,
    ) -> Comparison:
        """Compare tensors of the same names and shapes.

        Args:
            quantity: what they are.
            tree: tree training's.
            separate: separate training's.
            truth: float64's; needed when there is no tolerance.
            extra: what is allowed beyond the tolerance, in the quantity's unit.

        Returns:
            The judgement.

        Raises:
            ValueError: there is neither a tolerance nor a truth.
        """
        largest, worst = 0.0, None
        max_error = -1.0
        tree_square = separate_square = 0.0
        count = 0
        for name, value in separate.items():
            if not value.numel():
                continue
            own, other = tree[name].detach().double(), value.detach().double()
            differences = (own - other).abs().flatten()
            place = int(differences.nan_to_num(math.inf).argmax())
            error = float(differences[place])
            if not error <= max_error:
                max_error = error
                worst = Worst(name, place, *(float(v.flatten()[place]) for v in (other, own)))
            largest = max(largest, float(other.abs().max()))
            count += value.numel()
            if truth is not None:
                right = truth[name].detach().double()
                tree_square += float((own - right).square().sum())
                separate_square += float((other - right).square().sum())
        max_error = max(max_error, 0.0) if max_error == max_error else math.nan
        if self.tolerance is not None:
            allowed = self.tolerance * largest + extra
            return Comparison(quantity, max_error, largest, max_error, allowed, None, worst)
        if truth is None:
            raise ValueError(f"{quantity}: a comparison without a tolerance needs a truth")
        size = max(count, 1)
        floor = math.sqrt(separate_square / size)
        return Comparison(
            quantity,
            max_error,
            largest,
            error=math.sqrt(tree_square / size),
            allowed=self.factor * floor + extra,
            floor=floor,
            worst=worst,
        )
