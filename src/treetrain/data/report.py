"""What happened while a file was read: counts of everything that was left out or decided."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class ReadReport:
    """Counts beside the sequences of a file.

    Attributes:
        path: the file.
        rows: rows in the file, those not selected included.
        not_selected: rows left out by `select`.
        sequences: sequences made.
        kinds: number of rows of each kind, samples of a group counted one by one.
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
        tools_file: file of tool schemas that was used, or None.
        no_closing: whether the chat template ends assistant turns without an end-of-turn token.
    """

    path: str
    rows: int = 0
    not_selected: int = 0
    sequences: int = 0
    kinds: Counter[str] = field(default_factory=Counter[str])
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
    tools_file: str | None = None
    no_closing: bool = False

    def notes(self) -> list[str]:
        """Says in sentences what a reader should know.

        Returns:
            One sentence for each count that is not zero.
        """
        fields = ", ".join(f"{name} ({rows})" for name, rows in self.ignored_fields.items())
        notes = [
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
            (self.no_closing, "the chat template has no end-of-turn token: no end is trained"),
        ]
        return [sentence for happened, sentence in notes if happened]
