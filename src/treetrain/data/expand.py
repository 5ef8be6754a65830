"""Makes sequences of checked rows.

Each kind of row has a file of its own for that; here it is chosen, counted and shown to the watch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial

from treetrain.data.agent_rows import AgentRow
from treetrain.data.atif import AtifConversation, AtifRow, read_agents
from treetrain.data.chat import ASSISTANT, Chat, Tools
from treetrain.data.completions import sample_of_answer, sample_of_texts
from treetrain.data.conversation import Conversation, Expand
from treetrain.data.conversations import read_agent, read_conversations, read_threads
from treetrain.data.drift_watch import DriftWatch
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
from treetrain.data.recorded import join_steps, recorded_samples
from treetrain.data.rendered import Omissions, Unrendered, step_samples, whole_sample
from treetrain.data.report import ReadReport
from treetrain.data.sample import Sample
from treetrain.data.sharegpt import ShareGptRow
from treetrain.data.step_rows import StepRow, sample_of_step
from treetrain.data.tokens import sample_of_ids

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
            tokenizer = self._needed_chat(source).tokenizer
            return sample_of_texts(row, tokenizer, source, end_completions=self.end_completions)
        if isinstance(row, RecordedRow):
            chat = self._needed_chat(source)
            sample = sample_of_answer(row, chat, source)
            if self.watch is not None:
                self.seen.append(partial(self.watch.see_answer, row, chat.tokenizer, source))
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

    def _conversation_samples(self, conversation: Conversation) -> list[Sample]:
        omissions = Omissions(self.unrendered, self.report)
        try:
            if conversation.recorded:
                return self._recorded_steps(conversation, omissions)
            if self.expand == "per_step":
                return self._rendered_steps(conversation, omissions)
            return [whole_sample(self._needed_chat(conversation.source), conversation, omissions)]
        except ValueError as error:
            prefix = f"{conversation.source}: "
            text = str(error)
            raise ValueError(text if text.startswith(prefix) else prefix + text) from error

    def _recorded_steps(self, conversation: Conversation, omissions: Omissions) -> list[Sample]:
        self.report.recorded_steps += len(conversation.recorded)
        self._count_messages_after(conversation)
        check = partial(omissions.check_calls, conversation)
        samples = recorded_samples(self.chat, conversation, check)
        if self.expand == "whole":
            samples = join_steps(samples)
            self.report.recorded_sequences += len(samples)
        for sample in samples:
            place = sample.source or conversation.source
            self._watched(self._checked_ids(sample, place), place)
        return samples

    def _rendered_steps(self, conversation: Conversation, omissions: Omissions) -> list[Sample]:
        chat = self._needed_chat(conversation.source)
        samples, contexts = step_samples(chat, conversation, omissions)
        self._count_messages_after(conversation)
        if self.watch is not None:
            self.seen.append(partial(self.watch.see_steps, chat, conversation, samples, contexts))
        return samples

    def _count_messages_after(self, conversation: Conversation) -> None:
        last = conversation.trained[-1] if conversation.trained else -1
        self.report.messages_after += len(conversation.messages) - 1 - last
