"""The memory of a model's training step as a function of the tokens that run at once.

Numbers only; `memory` measures them, `estimate` walks a partitioned step with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from treetrain.tree.metrics import ModelShape
from treetrain.tree.prefix_tree import Ints

Bytes = NDArray[np.float64]


@dataclass(frozen=True)
class Line:
    """Bytes that grow with tokens.

    Attributes:
        fixed: bytes without a token.
        per_token: bytes of each token.
    """

    fixed: float
    per_token: float

    def at(self, tokens: Ints | np.int64) -> Bytes:
        """Give the bytes of some counts of tokens.

        Args:
            tokens: counts, int64 of any shape.

        Returns:
            Bytes, of the same shape.
        """
        return np.maximum(self.fixed + self.per_token * tokens, 0.0)


@dataclass(frozen=True)
class Phase:
    """A stretch of a step, by the most bytes that live in it beside the parameters.

    Attributes:
        live: activations and temporaries; gradients of parameters only until they are added.
        made: bytes of gradients of parameters that were added before this phase.
    """

    live: Line
    made: int


@dataclass(frozen=True)
class HeadMemory:
    """What the chunked head holds beside the decoder's activations.

    Attributes:
        fixed: gradients of its own parameters.
        per_token: hidden states of predictors and their gradients.
        per_row: logits of a predictor of the chunk at hand.
        rows: predictors of a chunk.
    """

    fixed: float
    per_token: float
    per_row: float
    rows: int

    def at(self, tokens: Ints) -> Bytes:
        """Give the bytes for some counts of predictors.

        Args:
            tokens: counts, int64 of any shape.

        Returns:
            Bytes, of the same shape.
        """
        return self.fixed + self.per_token * tokens + self.per_row * np.minimum(tokens, self.rows)


@dataclass(frozen=True)
class MemoryModel:
    """Bytes that training takes, and the sizes that decide its work.

    Attributes:
        device: where the model runs, for example "cpu"; activations are offloaded to the host from
            any other.
        shape: sizes for counting floating-point work.
        checkpointing: whether the model itself computes activations again in the backward pass.
        weights: parameters and buffers.
        gradients: gradients of the trainable parameters.
        optimizer: states of the optimiser.
        optimizer_working: what the optimiser's step holds for a while.
        activations: what a forward pass keeps for its backward pass, hidden states included.
        key_values: bytes of keys and values, all layers, of each token.
        accumulators: bytes of their gradients, which descendants give back, of each token.
        gateway: bytes that one layer holds for a while for each token of the ancestors.
        forward: the most that lives in a forward pass without gradients.
        phases: the step without its head.
        head: the head.
    """

    device: str
    shape: ModelShape
    checkpointing: bool
    weights: int
    gradients: int
    optimizer: int
    optimizer_working: int
    activations: Line
    key_values: int
    accumulators: int
    gateway: int
    forward: Line
    phases: tuple[Phase, ...]
    head: HeadMemory

    @property
    def on_host(self) -> bool:
        """Whether the model runs in the host's own memory."""
        return self.device.split(":")[0] == "cpu"

    def head_peak(self, tokens: Ints) -> Bytes:
        """The most that lives while the head runs, beside the parameters.

        Args:
            tokens: tokens of the partition, int64 of any shape.

        Returns:
            Bytes, of the same shape.
        """
        return self.activations.at(tokens) + self.head.at(tokens)

    def body_peak(self, tokens: Ints, *, first: bool) -> Bytes:
        """The most that lives in the rest of forward and backward pass, gradients included.

        Args:
            tokens: tokens of the partition, int64 of any shape.
            first: whether no parameter has a gradient before.

        Returns:
            Bytes, of the same shape.
        """
        lives = [phase.live.at(tokens) + self._made(phase, first) for phase in self.phases]
        return np.max(lives, axis=0)

    def worst_phase(self, tokens: int, *, first: bool) -> Phase:
        """The phase in which the most lives.

        Args:
            tokens: tokens of the partition.
            first: whether no parameter has a gradient before.

        Returns:
            The phase.
        """
        one = np.array(tokens)
        return max(
            self.phases, key=lambda phase: float(phase.live.at(one)) + self._made(phase, first)
        )

    def _made(self, phase: Phase, first: bool) -> int:
        return phase.made if first else self.gradients


def keep_highest(phases: Sequence[Phase], gradients: int) -> tuple[Phase, ...]:
    """Drop the phases that are never the highest, with gradients from before or without.

    Args:
        phases: phases of a step, one at least.
        gradients: gradients of all trainable parameters, bytes.

    Returns:
        The others, in their order.
    """
    kept: set[int] = set()
    for made in ([phase.made for phase in phases], [gradients] * len(phases)):
        fixed = np.array([phase.live.fixed for phase in phases]) + made
        slopes = np.array([phase.live.per_token for phase in phases])
        kept |= set(_find_envelope(fixed, slopes))
    return tuple(phases[place] for place in sorted(kept))


def _find_envelope(fixed: Bytes, slopes: Bytes) -> list[int]:
    """Lines that are the highest of all somewhere from 0 tokens on, the first of equals."""
    place = int(np.lexsort((-slopes, -fixed))[0])
    found = [place]
    while True:
        steeper = np.flatnonzero(slopes > slopes[place])
        if not len(steeper):
            return found
        meets = (fixed[place] - fixed[steeper]) / (slopes[steeper] - slopes[place])
        nearest = steeper[meets == meets.min()]
        place = int(nearest[np.argmax(slopes[nearest])])
        found.append(place)
