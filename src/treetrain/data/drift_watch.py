"""Watches rows being made into sequences and finds where recorded ids are left.

What is compared: a recorded answer with the ids that encoding its text gives; the context of each
step of a conversation with the context and sampled tokens of the step before; and a row of ids with
the row before it of its trajectory. `drift` compares.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from treetrain.data.chat import Chat, Message, Tokenizer
from treetrain.data.conversation import Conversation
from treetrain.data.drift import Decode, Drift, common_length, find_drift
from treetrain.data.encode import encode_texts
from treetrain.data.formats import RecordedRow
from treetrain.data.kept_history import text_after_turn
from treetrain.data.sample import Ints, Sample


@dataclass(frozen=True)
class _Step:
    """One assistant message as a sequence.

    Attributes:
        tokens: its context and what was sampled, [L] int64.
        context: how many of them are context.
        kept: the same where history keeps what was sampled, [K] int64.
        source: file, line and message.
        earlier: the step before it, or None.
    """

    tokens: Ints
    context: int
    kept: Ints
    source: str
    earlier: _Step | None


@dataclass
class DriftWatch:
    """What was compared while a file was read, and where it drifted.

    Attributes:
        decode: ids to text, nothing of it cleaned up, or None.
        answers: recorded answers that were tokenised again.
        answer_tokens: recorded tokens in them.
        other_retok: answers whose `retok` is not what this tokenizer gives.
        answer_drifts: where answers leave their recorded ids, in the order of the file.
        steps: steps that have a step before them.
        step_drifts: where steps leave the step before, in the order of the file.
        unknown: of these, how many have new messages that could not be told from what was sampled,
            so that history with the sampled tokens cannot be built: the step is kept as it is. So
            it is in all steps of ids alone.
        rendered: group and tokens of every step as it is, in the order of the file.
        kept: the same where history keeps what was sampled.
    """

    decode: Decode | None = None
    answers: int = 0
    answer_tokens: int = 0
    other_retok: int = 0
    answer_drifts: list[Drift] = field(default_factory=list[Drift])
    steps: int = 0
    step_drifts: list[Drift] = field(default_factory=list[Drift])
    unknown: int = 0
    rendered: list[tuple[Hashable, Ints]] = field(default_factory=list[tuple[Hashable, Ints]])
    kept: list[tuple[Hashable, Ints]] = field(default_factory=list[tuple[Hashable, Ints]])
    _row: str | None = field(default=None, repr=False)
    # Of each trajectory of ids, the last step and where it stands.
    _last: dict[tuple[Hashable, Hashable], tuple[Ints, str]] = field(
        default_factory=dict[tuple[Hashable, Hashable], tuple[Ints, str]], repr=False
    )
    # By the identity of the message: threads of a tree hold the same messages.
    _steps: dict[int, tuple[Message, _Step]] = field(
        default_factory=dict[int, tuple[Message, _Step]], repr=False
    )

    def see_answer(self, row: RecordedRow, tokenizer: Tokenizer, source: str) -> None:
        """Tokenises the text of a recorded answer again.

        Args:
            row: a recorded answer; without a text of its own its ids are decoded.
            tokenizer: tokenizer of transformers.
            source: file and line.
        """
        recorded = np.array(row.ids, dtype=np.int64)
        text = row.text
        if text is None:
            if self.decode is None:
                return
            text = self.decode(row.ids)
        again = encode_texts(tokenizer, [text])[0]
        self.answers += 1
        self.answer_tokens += len(recorded)
        self.other_retok += row.retok is not None and row.retok != again.tolist()
        drift = find_drift(recorded, again, self.decode, source=source)
        if drift is not None:
            self.answer_drifts.append(drift)

    def see_ids(self, sample: Sample, source: str) -> None:
        """Compares a step of ids with the one before it of its trajectory.

        Args:
            sample: a sequence that was recorded as ids; without a trajectory it is no step.
            source: file and line.
        """
        if sample.trajectory is None:
            return
        name = (sample.group, sample.trajectory)
        before = self._last.get(name)
        self._last[name] = (sample.tokens, source)
        self.rendered.append((sample.group, sample.tokens))
        self.kept.append((sample.group, sample.tokens))
        if before is None:
            return
        self.steps += 1
        tokens, where = before
        drift = find_drift(tokens, sample.tokens, self.decode, source=where, later=source)
        if drift is not None:
            self.step_drifts.append(drift)
            self.unknown += 1

    def see_steps(
        self,
        chat: Chat,
        conversation: Conversation,
        samples: Sequence[Sample],
        contexts: Sequence[tuple[str, int]],
    ) -> None:
        """Compares the steps of a conversation, each with the one before it.

        Args:
            chat: tokenizer and chat template.
            conversation: the conversation; threads of one message tree come one after the other.
            samples: the sequence of each trained message.
            contexts: text and number of tokens of each sample's context.
        """
        if conversation.source != self._row:
            self._row = conversation.source
            self._steps = {}
        steps = zip(conversation.trained, samples, contexts, strict=True)
        for place, sample, (text, length) in steps:
            before = self._step_before(conversation, place)
            context, sampled = sample.tokens[:length], sample.tokens[length:]
            kept = context
            if before is not None:
                kept = self._compare(
                    chat, conversation, before, place=place, context=context, text=text
                )
            step = _Step(
                tokens=sample.tokens,
                context=length,
                kept=np.concatenate([kept, sampled]),
                source=conversation.place(place),
                earlier=None if before is None else before[1],
            )
            message = conversation.messages[place]
            self._steps[id(message)] = (message, step)
            self.rendered.append((conversation.group, step.tokens))
            self.kept.append((conversation.group, step.kept))

    def _step_before(self, conversation: Conversation, place: int) -> tuple[int, _Step] | None:
        for earlier in range(place - 1, -1, -1):
            found = self._steps.get(id(conversation.messages[earlier]))
            if found is not None:
                return earlier, found[1]
        return None

    def _compare(
        self,
        chat: Chat,
        conversation: Conversation,
        before: tuple[int, _Step],
        *,
        place: int,
        context: Ints,
        text: str,
    ) -> Ints:
        """Compares a context with the step before, and gives the context that keeps that step."""
        index, step = before
        self.steps += 1
        drift = find_drift(
            step.tokens,
            context,
            self.decode,
            source=_message_of(step, common_length(step.tokens, context)),
            later=conversation.place(place),
        )
        if drift is None:
            return np.concatenate([step.kept, context[len(step.tokens) :]])
        self.step_drifts.append(drift)
        messages = conversation.messages[:place]
        behind = text_after_turn(chat, messages, conversation.tools, place=index, context=text)
        if behind is None:
            self.unknown += 1
            return context
        return np.concatenate([step.kept, encode_texts(chat.tokenizer, [behind])[0]])


def _message_of(step: _Step, place: int) -> str:
    """Says in which message a token of a step lies: the last that was sampled before it."""
    found: _Step | None = step
    first = step
    while found is not None:
        own = step.tokens[: found.context]
        if found.context <= place and np.array_equal(own, found.tokens[: found.context]):
            return found.source
        first, found = found, found.earlier
    return f"{first.source}, before it"
