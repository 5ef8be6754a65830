"""A conversation with what is trained in it, as everything takes it that makes sequences of one.

`conversations` makes conversations of rows; `rendered` and `recorded` make sequences of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from treetrain.data.atif import Recorded
from treetrain.data.chat import Tools
from treetrain.data.fields import Json
from treetrain.data.sample import Floats, Ints, Sample

Expand = Literal["whole", "per_step"]


@dataclass(frozen=True)
class Conversation:
    """Messages with what is trained in them, ready to be rendered.

    Attributes:
        messages: normalised messages: content is text, arguments are as the template takes them.
        trained: indices of the assistant messages that are trained.
        tools: schemas of the tools, or None.
        group: name of the tree.
        trajectory: name of the conversation.
        named: whether the row itself named the trajectory.
        advantage: the conversation's advantage, or None.
        reward: its reward, or None.
        source: file and line.
        recorded: token ids that were recorded when messages were sampled, by the message's index.
    """

    messages: Sequence[Json]
    trained: Sequence[int]
    tools: Tools | None
    group: Hashable | None
    trajectory: Hashable
    named: bool
    advantage: float | None
    reward: float | None
    source: str
    recorded: Mapping[int, Recorded] = field(default_factory=dict[int, Recorded])

    def place(self, message: int) -> str:
        """Says where a message stands.

        Args:
            message: its index.

        Returns:
            File, line and index.
        """
        return f"{self.source}: messages[{message}]"

    def whole_sample(self, tokens: Ints, weights: Floats) -> Sample:
        """Makes the sequence of the whole conversation.

        Args:
            tokens: its token ids, [L].
            weights: weight of each token as a target, [L].

        Returns:
            The sequence, a trajectory of its own where the row names none.
        """
        return self._sample(
            tokens,
            weights,
            logprobs=None,
            trajectory=self.trajectory if self.named else None,
            source=self.source,
        )

    def step_sample(
        self, message: int, context: Ints, sampled: Ints, *, logprobs: list[float] | None = None
    ) -> Sample:
        """Makes the sequence of one assistant message, of which only what was sampled is trained.

        Args:
            message: index of the message.
            context: token ids that it was sampled after, [C].
            sampled: token ids that were sampled, [R].
            logprobs: log-probability of each of them then, [R], nats, or None.

        Returns:
            The sequence, [C + R] tokens, a step of the conversation's trajectory.
        """
        return self._sample(
            np.concatenate([context, sampled]),
            np.repeat([0.0, 1.0], [len(context), len(sampled)]),
            logprobs=logprobs if logprobs is None else [0.0] * len(context) + logprobs,
            trajectory=self.trajectory,
            source=self.place(message),
        )

    def _sample(
        self,
        tokens: Ints,
        weights: Floats,
        *,
        logprobs: list[float] | None,
        trajectory: Hashable | None,
        source: str,
    ) -> Sample:
        return Sample(
            tokens,
            weights,
            group=self.group,
            trajectory=trajectory,
            advantage=self.advantage,
            reward=self.reward,
            logprobs=logprobs,
            source=source,
        )
