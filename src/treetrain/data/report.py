"""What happened while a file was read: counts of everything that was left out or decided."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Any, cast

#: Wrong rows that are listed one by one for a person.
SKIPPED_SHOWN = 10


@dataclass
class ReadReport:
    """Counts beside the sequences of a file.

    Attributes:
        path: the file.
        rows: rows in the file, those not selected and those skipped included.
        not_selected: rows left out by `select`.
        skipped: what was wrong with each row that was skipped, file and line first.
        sequences: sequences made.
        kinds: number of rows of each kind, samples of a group counted one by one.
        taken_for: number of rows by what they were taken for, in the words of `formats.describe`.
        ignored_fields: number of rows for each field that nothing reads.
        already_sequences: rows of ids, or of prompt and completion as text, read per step: each is
            one sequence whatever was asked for.
        ids_outside: rows of ids with a token id that the tokenizer does not have.
        first_outside: file and line of the first of them, the id, and the tokenizer's size.
        all_trained: rows of ids that say nothing about what is trained, so that every token is.
        untrained: sequences in which no token is trained.
        open_conversations: conversations whose last message is not the assistant's.
        messages_after: messages after the last trained one, which belong to no sequence (per step).
        calls_missing: assistant messages whose tool calls the chat template does not write.
        tools_missing: conversations whose tool schemas the chat template does not write.
        tokens_across: tokens across the edge of a turn, taking only white space of it; not trained.
        recorded_steps: messages of which recorded token ids were taken, not their text.
        recorded_sequences: sequences that they were joined to, where steps were not asked for.
        not_sampled: agent messages that are not trained: context copied from another trajectory, or
            made without a call of a model.
        plain_observations: results that answer no tool call; they are messages of the user.
        elsewhere: sub-agents and continuations in other files, which are not read.
        tools_file: file of tool schemas that was used, or None.
        no_closing: whether the chat template ends assistant turns without an end-of-turn token.
    """

    path: str
    rows: int = 0
    not_selected: int = 0
    skipped: list[str] = field(default_factory=list[str])
    sequences: int = 0
    kinds: Counter[str] = field(default_factory=Counter[str])
    taken_for: Counter[str] = field(default_factory=Counter[str])
    ignored_fields: Counter[str] = field(default_factory=Counter[str])
    already_sequences: int = 0
    ids_outside: int = 0
    first_outside: str | None = None
    all_trained: int = 0
    untrained: int = 0
    open_conversations: int = 0
    messages_after: int = 0
    calls_missing: int = 0
    tools_missing: int = 0
    tokens_across: int = 0
    recorded_steps: int = 0
    recorded_sequences: int = 0
    not_sampled: int = 0
    plain_observations: int = 0
    elsewhere: int = 0
    tools_file: str | None = None
    no_closing: bool = False

    @property
    def rows_read(self) -> int:
        """Rows that sequences were made of: all but those not selected and those skipped."""
        return self.rows - self.not_selected - len(self.skipped)

    def add(self, other: ReadReport) -> None:
        """Adds the counts of another report, of one row for example.

        Args:
            other: the counts; of what is not counted, the first that says anything stays.
        """
        for one in fields(self):
            mine, more = getattr(self, one.name), getattr(other, one.name)
            if isinstance(mine, bool) or mine is None:
                setattr(self, one.name, mine or more)
            elif isinstance(mine, Counter):
                cast(Counter[Any], mine).update(more)
            elif isinstance(mine, int | list):
                setattr(self, one.name, mine + more)

    def notes(self, *, every_skipped: bool = False) -> list[str]:
        """Says in sentences what a reader should know.

        Args:
            every_skipped: whether all skipped rows are listed, not the first of them.

        Returns:
            One sentence for each count that is not zero.
        """
        fields = ", ".join(f"{name} ({rows})" for name, rows in self.ignored_fields.items())
        kinds = "; ".join(
            f"{rows} {kind.replace('{s}', '' if rows == 1 else 's')}"
            for kind, rows in self.taken_for.items()
        )
        shown = len(self.skipped) if every_skipped else SKIPPED_SHOWN
        hidden = len(self.skipped) - shown
        notes = [
            (kinds, f"rows: {kinds}"),
            (
                self.skipped,
                f"{len(self.skipped)} of {self.rows} rows are wrong and were skipped",
            ),
            *((True, f"skipped {wrong}") for wrong in self.skipped[:shown]),
            (hidden > 0, f"skipped {hidden} more, all of which --json lists"),
            (self.not_selected, f"{self.not_selected} of {self.rows} rows were not selected"),
            (self.tools_file, f"tool schemas were read from {self.tools_file}"),
            (fields, f"fields not read (rows): {fields}"),
            (
                self.already_sequences,
                f"{self.already_sequences} rows hold no messages: each is one sequence, also per "
                f"step",
            ),
            (
                self.ids_outside,
                f"{self.ids_outside} rows have token ids outside the tokenizer's vocabulary, first "
                f"{self.first_outside}: were they made with another one?",
            ),
            (self.all_trained, f"{self.all_trained} rows have no mask: every token is trained"),
            (self.untrained, f"{self.untrained} sequences have no trained token"),
            (
                self.open_conversations,
                f"{self.open_conversations} conversations do not end with the assistant",
            ),
            (
                self.messages_after,
                f"{self.messages_after} messages after a conversation's last assistant message are "
                f"in no sequence",
            ),
            (
                self.calls_missing,
                f"{self.calls_missing} assistant messages have tool calls that the chat template "
                f"does not write: they are not in the text",
            ),
            (
                self.tools_missing,
                f"{self.tools_missing} conversations have tools that the chat template does not "
                f"write: they are not in the text",
            ),
            (
                self.tokens_across,
                f"{self.tokens_across} tokens cross the edge of a turn in white space: not trained",
            ),
            (
                self.recorded_steps and not self.recorded_sequences,
                f"{self.recorded_steps} messages have recorded token ids: these were taken, not "
                f"the text",
            ),
            (
                self.recorded_sequences,
                f"{self.recorded_steps} messages have recorded token ids: these were taken, not "
                f"the text, and joined to {self.recorded_sequences} sequences where one context "
                f"begins with all of the one before",
            ),
            (
                self.not_sampled,
                f"{self.not_sampled} agent messages are copied context or came without a call of "
                f"a model: not trained",
            ),
            (
                self.plain_observations,
                f"{self.plain_observations} observations answer no tool call: read as messages of "
                f"the user",
            ),
            (
                self.elsewhere,
                f"{self.elsewhere} sub-agents or continuations are in other files: not read",
            ),
            (self.no_closing, "the chat template has no end-of-turn token: no end is trained"),
        ]
        return [sentence for happened, sentence in notes if happened]
