"""Makes sequences of checked rows: which conversations become which tokens, and what is trained."""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from treetrain.data.chat import (
    ASSISTANT,
    Chat,
    Tokenizer,
    Tools,
    calls_missing,
    find_turns,
    split_step,
    tools_missing,
)
from treetrain.data.encode import encode_texts, encode_turns, opening_tokens
from treetrain.data.formats import (
    CompletionRow,
    ConversationRow,
    FlatRow,
    Json,
    RecordedRow,
    TextRow,
    TokenRow,
    TreeRow,
    field_error,
)
from treetrain.data.report import ReadReport
from treetrain.data.sample import Ints, Sample
from treetrain.data.tokens import sample_of_ids

Expand = Literal["whole", "per_step"]
Unrendered = Literal["refuse", "count"]

ROLES_OF_TREES = {"prompter": "user"}


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
        source: file and line.
    """

    messages: Sequence[Json]
    trained: Sequence[int]
    tools: Tools | None
    group: Hashable | None
    trajectory: Hashable
    named: bool
    advantage: float | None
    source: str


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
    """

    chat: Chat | None
    expand: Expand
    tools: Tools | None
    unrendered: Unrendered
    end_completions: bool
    report: ReadReport = field(repr=False)

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
        if isinstance(row, TokenRow):
            return [sample_of_ids(row, source, self.report)]
        if isinstance(row, TextRow):
            return [self._text_sample(row, source)]
        if isinstance(row, RecordedRow):
            return [self._recorded_sample(row, source)]
        found: list[Sample] = []
        for conversation in self._conversations(row, fields, source):
            if conversation.messages[-1]["role"] != ASSISTANT:
                self.report.open_conversations += 1
            found += self._conversation_samples(conversation)
        return found

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
        return _split_sample(
            row, encode_texts(chat.tokenizer, [context])[0], np.array(row.ids, np.int64), source
        )

    def _conversations(
        self, row: ConversationRow | CompletionRow | TreeRow, fields: Json, source: str
    ) -> list[Conversation]:
        chat = self._needed_chat(source)
        if isinstance(row, TreeRow):
            return self._threads(row, source)
        names = ("messages",) if isinstance(row, ConversationRow) else ("prompt", "completion")
        messages: list[Json] = []
        for name in names:
            before = len(messages)
            for index, message in enumerate(fields[name]):
                messages.append(_normalised(chat, message, f"{name}[{index}]", source))
        first = 0 if isinstance(row, ConversationRow) else before
        if not messages:
            raise field_error(source, names[-1], "must have at least one message, got none")
        trained = [i for i, message in enumerate(messages) if message["role"] == ASSISTANT]
        return [
            Conversation(
                messages=messages,
                trained=[i for i in trained if i >= first],
                tools=row.tools if row.tools is not None else self.tools,
                group=row.group,
                trajectory=source if row.trajectory_id is None else row.trajectory_id,
                named=row.trajectory_id is not None,
                advantage=row.advantage,
                source=source,
            )
        ]

    def _threads(self, row: TreeRow, source: str) -> list[Conversation]:
        group = row.message_tree_id if row.group is None else row.group
        threads: list[tuple[list[Json], list[int]]] = []
        stack: list[tuple[Any, list[Json]]] = [(row.prompt, [])]
        while stack:
            reply, above = stack.pop()
            role = ROLES_OF_TREES.get(reply.role, reply.role)
            messages = [*above, {"role": role, "content": reply.text}]
            if self.expand == "per_step" and role == ASSISTANT:
                # Each message was sampled once, however many threads go through it.
                threads.append((messages, [len(messages) - 1]))
            if self.expand == "whole" and not reply.replies:
                trained = [i for i, m in enumerate(messages) if m["role"] == ASSISTANT]
                threads.append((messages, trained))
            stack += [(child, messages) for child in reversed(reply.replies)]
        return [
            Conversation(
                messages=messages,
                trained=trained,
                tools=None,
                group=source if group is None else group,
                trajectory=source if row.trajectory_id is None else row.trajectory_id,
                named=row.trajectory_id is not None,
                advantage=row.advantage,
                source=source,
            )
            for messages, trained in threads
        ]

    def _conversation_samples(self, conversation: Conversation) -> list[Sample]:
        try:
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
            source=conversation.source,
        )

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
        ids = encode_texts(chat.tokenizer, texts)
        return [
            Sample(
                np.concatenate([context, sampled]),
                np.repeat([0.0, 1.0], [len(context), len(sampled)]),
                group=conversation.group,
                trajectory=conversation.trajectory,
                advantage=conversation.advantage,
                source=f"{conversation.source}: messages[{place}]",
            )
            for place, context, sampled in zip(
                conversation.trained, ids[::2], ids[1::2], strict=True
            )
        ]

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
        source=source,
    )


def _end_token(tokenizer: Tokenizer, source: str) -> Ints:
    end = getattr(tokenizer, "eos_token_id", None)
    if end is None:
        raise ValueError(
            f"{source}: the tokenizer has no end-of-text token to end a completion with; give "
            f"end_completions=False"
        )
    return np.array([end], dtype=np.int64)


def _normalised(chat: Chat, message: Json, place: str, source: str) -> Json:
    kept = {name: value for name, value in message.items() if value is not None}
    content = kept.get("content", "")
    if isinstance(content, list):
        parts: list[Json] = content
        content = "".join(part["text"] for part in parts)
    kept["content"] = content
    if "tool_calls" in kept:
        kept["tool_calls"] = [
            _normalised_call(chat, call, f"{place}.tool_calls[{index}]", source)
            for index, call in enumerate(kept["tool_calls"])
        ]
    return kept


def _normalised_call(chat: Chat, call: Json, place: str, source: str) -> Json:
    if "function" in call:
        inner = _normalised_call(chat, call["function"], f"{place}.function", source)
        return {**call, "function": inner}
    arguments = call.get("arguments")
    if not isinstance(arguments, str) or chat.takes_argument_text:
        return call
    try:
        parsed = json.loads(arguments or "{}")
    except json.JSONDecodeError as error:
        raise field_error(
            source, f"{place}.arguments", f"must be JSON, got {arguments[:60]!r}: {error}"
        ) from error
    return {**call, "arguments": parsed}
