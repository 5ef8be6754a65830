"""Makes sequences of checked rows: what is rendered and encoded, and what is trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Literal

import numpy as np

from treetrain.data.agent_rows import AgentRow
from treetrain.data.atif import AtifConversation, AtifRow, read_agents
from treetrain.data.chat import ASSISTANT, Chat, Tokenizer, Tools
from treetrain.data.conversations import (
    Conversation,
    Expand,
    read_agent,
    read_conversations,
    read_threads,
)
from treetrain.data.drift_watch import DriftWatch
from treetrain.data.encode import encode_steps, encode_texts, encode_turns, opening_tokens
from treetrain.data.fields import Json
from treetrain.data.formats import (
    CompletionRow,
    ConversationRow,
    FlatRow,
    RecordedRow,
    TextRow,
    TokenRow,
    TreeRow,
    describe,
)
from treetrain.data.recorded import join_steps, step_samples
from treetrain.data.report import ReadReport
from treetrain.data.sample import Ints, Sample
from treetrain.data.sharegpt import ShareGptRow
from treetrain.data.step_rows import StepRow, sample_of_step
from treetrain.data.tokens import sample_of_ids
from treetrain.data.turns import calls_missing, find_turns, split_step, tools_missing

Unrendered = Literal["refuse", "count"]

#: The kind of row under which sequences of tree files are counted.
STORED = "StoredTree"


@dataclass
class Expander:
    """Everything about reading a file that does not change from row to row.

    Attributes:
        chat: tokenizer and chat template, or None for rows of ids only.
        expand: `whole` or `per_step`.
        tools: schemas used where a row has none of its own.
        unrendered: whether tools and calls that the template leaves out are refused or counted.
        end_completions: whether a completion given as text ends with the end-of-text token.
        report: counts, added to.
        watch: told of recorded answers and of steps, or None.
        seen: what the watch has not been told yet, since the row may still turn out wrong.
    """

    chat: Chat | None
    expand: Expand
    tools: Tools | None
    unrendered: Unrendered
    end_completions: bool
    report: ReadReport = field(repr=False)
    watch: DriftWatch | None = field(default=None, repr=False)
    seen: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]], repr=False)

    def samples(self, row: FlatRow, fields: Json, source: str) -> list[Sample]:
        """Makes the sequences of one row.

        Args:
            row: the checked row.
            fields: the JSON object behind it.
            source: file and line.

        Returns:
            The sequences, in the order of the row.
        """
        self.report.kinds[type(row).__name__] += 1
        self.report.taken_for[describe(row, fields)] += 1
        if isinstance(row, StepRow):
            sample = self._checked_ids(sample_of_step(row, fields, source), source)
            return [self._watched(sample, source)]
        if isinstance(row, (TokenRow, TextRow, RecordedRow)):
            self.report.already_sequences += self.expand == "per_step"
            return [self._plain_sample(row, source)]
        found: list[Sample] = []
        for conversation in self._conversations(row, fields, source):
            if conversation.messages[-1]["role"] != ASSISTANT:
                self.report.open_conversations += 1
            found += self._conversation_samples(conversation)
        return found

    def _conversations(
        self,
        row: TreeRow | ConversationRow | CompletionRow | ShareGptRow | AgentRow | AtifRow,
        fields: Json,
        source: str,
    ) -> list[Conversation]:
        if isinstance(row, AtifRow):
            return [self._agent(agent, row, source) for agent in read_agents(row, source)]
        chat = self._needed_chat(source)
        if isinstance(row, TreeRow):
            return read_threads(row, expand=self.expand, source=source)
        return read_conversations(chat, row, fields, tools=self.tools, source=source)

    def _agent(self, agent: AtifConversation, row: AtifRow, source: str) -> Conversation:
        self.report.elsewhere += agent.elsewhere
        self.report.not_sampled += agent.not_sampled
        self.report.plain_observations += agent.plain_observations
        recorded = agent.recorded
        complete = all(i in recorded and recorded[i].context is not None for i in agent.trained)
        chat = self.chat if complete else self._needed_chat(source)
        return read_agent(chat, agent, row, tools=self.tools, source=source)

    def _plain_sample(self, row: TokenRow | TextRow | RecordedRow, source: str) -> Sample:
        if isinstance(row, TextRow):
            return self._text_sample(row, source)
        if isinstance(row, RecordedRow):
            sample = self._recorded_sample(row, source)
        else:
            sample = self._watched(sample_of_ids(row, source, self.report), source)
        return self._checked_ids(sample, source)

    def tell_watch(self) -> None:
        """Tells the watch what was seen since the last time."""
        for call in self.seen:
            call()
        self.seen = []

    def see_stored(self, sample: Sample, source: str) -> None:
        """Counts a sequence that was read as a sequence.

        Args:
            sample: the sequence.
            source: where it stands.
        """
        self.report.kinds[STORED] += 1
        self.report.taken_for["sequence{s} of a tree file"] += 1
        self.report.already_sequences += self.expand == "per_step"
        self._watched(self._checked_ids(sample, source), source)

    def _watched(self, sample: Sample, source: str) -> Sample:
        if self.watch is not None:
            self.seen.append(partial(self.watch.see_ids, sample, source))
        return sample

    def _checked_ids(self, sample: Sample, source: str) -> Sample:
        """Counts a sequence with ids that the tokenizer does not have."""
        largest = int(sample.tokens.max(initial=0))
        if self._vocabulary is not None and largest >= self._vocabulary:
            self.report.ids_outside += 1
            if self.report.first_outside is None:
                self.report.first_outside = f"{source} with id {largest} of {self._vocabulary}"
        return sample

    @cached_property
    def _vocabulary(self) -> int | None:
        """One past the largest id of the tokenizer, where it says so."""
        get = None if self.chat is None else getattr(self.chat.tokenizer, "get_vocab", None)
        return None if get is None else max(get().values(), default=-1) + 1

    def _needed_chat(self, source: str) -> Chat:
        if self.chat is None:
            raise ValueError(f"{source}: rows of text need a tokenizer; give tokenizer=...")
        return self.chat

    def _text_sample(self, row: TextRow, source: str) -> Sample:
        tokenizer = self._needed_chat(source).tokenizer
        prompt, completion = encode_texts(tokenizer, [row.prompt, row.completion])
        end = _end_token(tokenizer, source) if self.end_completions else np.empty(0, np.int64)
        prompt = np.concatenate([opening_tokens(tokenizer), prompt])
        return _split_sample(row, prompt, np.concatenate([completion, end]), source)

    def _recorded_sample(self, row: RecordedRow, source: str) -> Sample:
        chat = self._needed_chat(source)
        question = [{"role": "user", "content": row.prompt}]
        try:
            context = chat.render(question, None, prompt=True)
        except ValueError as error:
            raise ValueError(f"{source}: {error}") from error
        ids = np.array(row.ids, np.int64)
        sample = _split_sample(row, encode_texts(chat.tokenizer, [context])[0], ids, source)
        if self.watch is not None:
            self.seen.append(partial(self.watch.see_answer, row, chat.tokenizer, source))
        return sample

    def _conversation_samples(self, conversation: Conversation) -> list[Sample]:
        try:
            if conversation.recorded:
                return self._recorded_steps(conversation)
            if self.expand == "whole":
                return [self._whole_sample(conversation)]
            return self._step_samples(conversation)
        except ValueError as error:
            prefix = f"{conversation.source}: "
            text = str(error)
            raise ValueError(text if text.startswith(prefix) else prefix + text) from error

    def _whole_sample(self, conversation: Conversation) -> Sample:
        chat = self._needed_chat(conversation.source)
        text, turns = find_turns(chat, conversation.messages, conversation.tools)
        turns = [turn for turn in turns if turn.message in conversation.trained]
        for turn in turns:
            self._check_calls(conversation, turn.message, text[turn.start : turn.end])
        self._check_tools(conversation, text)
        tokens, weights, across = encode_turns(chat.tokenizer, text, turns)
        self.report.tokens_across += across
        return Sample(
            tokens,
            weights,
            group=conversation.group,
            trajectory=conversation.trajectory if conversation.named else None,
            advantage=conversation.advantage,
            reward=conversation.reward,
            source=conversation.source,
        )

    def _recorded_steps(self, conversation: Conversation) -> list[Sample]:
        self.report.recorded_steps += len(conversation.recorded)
        last = conversation.trained[-1] if conversation.trained else -1
        self.report.messages_after += len(conversation.messages) - 1 - last
        samples = step_samples(self.chat, conversation, partial(self._check_calls, conversation))
        if self.expand == "whole":
            samples = join_steps(samples)
            self.report.recorded_sequences += len(samples)
        for sample in samples:
            place = sample.source or conversation.source
            self._watched(self._checked_ids(sample, place), place)
        return samples

    def _step_samples(self, conversation: Conversation) -> list[Sample]:
        chat = self._needed_chat(conversation.source)
        texts: list[str] = []
        for place in conversation.trained:
            context, sampled = split_step(
                chat, conversation.messages, conversation.tools, place=place
            )
            self._check_calls(conversation, place, sampled)
            texts += [context, sampled]
        if texts:
            self._check_tools(conversation, texts[-2])
        last = conversation.trained[-1] if conversation.trained else -1
        self.report.messages_after += len(conversation.messages) - 1 - last
        ids = encode_steps(chat.tokenizer, texts)
        samples = [
            Sample(
                np.concatenate([context, sampled]),
                np.repeat([0.0, 1.0], [len(context), len(sampled)]),
                group=conversation.group,
                trajectory=conversation.trajectory,
                advantage=conversation.advantage,
                reward=conversation.reward,
                source=f"{conversation.source}: messages[{place}]",
            )
            for place, context, sampled in zip(
                conversation.trained, ids[::2], ids[1::2], strict=True
            )
        ]
        if self.watch is not None:
            lengths = [len(context) for context in ids[::2]]
            contexts = list(zip(texts[::2], lengths, strict=True))
            self.seen.append(partial(self.watch.see_steps, chat, conversation, samples, contexts))
        return samples

    def _check_calls(self, conversation: Conversation, place: int, turn: str) -> None:
        if not calls_missing(conversation.messages[place], turn):
            return
        if self.unrendered == "refuse":
            raise ValueError(
                f"messages[{place}].tool_calls are not written by the chat template, so that the "
                f"model would be trained not to make them; give a chat_template that writes tool "
                f"calls, or unrendered='count' to go on without them"
            )
        self.report.calls_missing += 1

    def _check_tools(self, conversation: Conversation, text: str) -> None:
        if not tools_missing(conversation.tools, text):
            return
        if self.unrendered == "refuse":
            raise ValueError(
                "the tools are not written by the chat template, so that the model would not see "
                "them; give a chat_template that writes tools, tools=[] to leave them out, or "
                "unrendered='count' to go on without them"
            )
        self.report.tools_missing += 1


def _split_sample(row: TextRow | RecordedRow, prompt: Ints, sampled: Ints, source: str) -> Sample:
    return Sample(
        np.concatenate([prompt, sampled]),
        np.repeat([0.0, 1.0], [len(prompt), len(sampled)]),
        group=row.group,
        trajectory=row.trajectory_id,
        advantage=row.advantage,
        reward=row.reward,
        source=source,
    )


def _end_token(tokenizer: Tokenizer, source: str) -> Ints:
    end = getattr(tokenizer, "eos_token_id", None)
    if end is None:
        raise ValueError(
            f"{source}: the tokenizer has no end-of-text token to end a completion with; give it "
            "one (eos_token), or end_completions=False"
        )
    return np.array([end], dtype=np.int64)
