"""Lets a model act in the greenhouse: it writes a step, the tool runs, it reads the answer.

Decoding is greedy with the key/value cache of plain transformers. History has no thinking, so each
step's prompt begins like the one before; the cache is cut back to what both share.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel

from treetrain.demo.agent import Act
from treetrain.demo.errands import Errand
from treetrain.demo.greenhouse import Json
from treetrain.demo.make_tokenizer import END
from treetrain.demo.trajectories import make_answer, make_message, open_conversation

MAX_STEPS = 16
MAX_STEP_TOKENS = 160
END_TOKENS = len(END)


@dataclass(frozen=True)
class Attempt:
    """What a model did with an errand.

    Attributes:
        solved: whether it stopped by itself and the greenhouse is as the errand wants it.
        calls: tool calls that ran.
        ended: why it stopped: "finished", "malformed" (a step that is neither a call nor an end),
            "refused" (a call that the greenhouse cannot run) or "too long".
    """

    solved: bool
    calls: int
    ended: str


class Actor:
    """A model that writes steps.

    Args:
        model: a plain model, or a prepared one; its plain calls are used.
        tokenizer: the example's, with its chat template.
        tools: schemas of the tools that it is told of.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: Any, tools: Sequence[Json]) -> None:
        self._tools = list(tools)
        self._model = model
        self._tokenizer = tokenizer
        self._cache = DynamicCache(config=model.config)
        # transformers calls it `cache` in later releases.
        named = signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in named else "past_key_values"
        self._seen: list[int] = []

    def attempt(self, errand: Errand) -> Attempt:
        """Works on an errand until it stops or may not go on.

        Args:
            errand: the errand; a copy of its greenhouse is acted on.

        Returns:
            What became of it.
        """
        own = copy.deepcopy(errand.greenhouse)
        messages = open_conversation(errand.task)
        for calls in range(MAX_STEPS):
            written = self._write(messages)
            try:
                act = read_step(written)
            except ValueError:
                return Attempt(False, calls, "malformed")
            messages.append(make_message(act, len(messages)))
            if act.tool is None:
                return Attempt(own == errand.wanted, calls, "finished")
            try:
                answer = own.call(act.tool, act.arguments)
            except ValueError:
                return Attempt(False, calls, "refused")
            messages.append(make_answer(act.tool, answer, len(messages)))
        return Attempt(False, MAX_STEPS, "too long")

    def _write(self, messages: list[Json]) -> str:
        prompt = self._tokenizer.apply_chat_template(
            messages, tools=self._tools, tokenize=False, add_generation_prompt=True
        )
        tokens: list[int] = self._tokenizer(prompt, add_special_tokens=False)["input_ids"]
        written: list[int] = []
        left = tokens[self._share(tokens) :]
        with torch.inference_mode():
            while len(written) < MAX_STEP_TOKENS:
                call: dict[str, Any] = {self._cache_name: self._cache, "logits_to_keep": 1}
                logits = self._model(torch.tensor([left]), **call).logits
                self._seen += left
                written.append(int(logits[0, -1].argmax()))
                left = written[-1:]
                # The end of a turn is several tokens where the tokenizer is not the example's.
                if self._tokenizer.decode(written[-END_TOKENS:]).endswith(END):
                    break
        return self._tokenizer.decode(written)

    def _share(self, tokens: list[int]) -> int:
        """Cuts the cache back to the tokens that it shares with a prompt; the last is left out."""
        same = 0
        for old, new in zip(self._seen, tokens[:-1], strict=False):
            if old != new:
                break
            same += 1
        if same < len(self._seen):
            self._cache.crop(same - len(self._seen))
            del self._seen[same:]
        return same


def read_step(text: str) -> Act:
    """Reads a step as the chat template writes it.

    Args:
        text: what the model wrote, the end of its turn included.

    Returns:
        The step.

    Raises:
        ValueError: the text has no end, its thought has none, or its call is no name with a JSON
            object.
    """
    if not text.endswith(END):
        raise ValueError(f"text must end with <|end|>, got {text[-40:]!r}")
    thinking, mark, said = text.removesuffix(END).partition("\n</think>\n")
    if not mark or not thinking.startswith("<think>\n"):
        raise ValueError(f"text must begin with one thought, got {text[:40]!r}")
    thinking = thinking.removeprefix("<think>\n")
    said, mark, call = said.partition("<tool_call>\n")
    if not mark:
        return Act(thinking, said)
    name, _, arguments = call.removesuffix("\n</tool_call>").partition(" ")
    found = json.loads(arguments)
    if not isinstance(found, dict) or not call.endswith("\n</tool_call>"):
        raise ValueError(f"call must be a name and a JSON object, got {call!r}")
    return Act(thinking, said, name, found)


def act_on(
    model: PreTrainedModel,
    tokenizer: Any,
    errands: Sequence[Errand],
    *,
    tools: Sequence[Json],
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Attempt]:
    """Lets a model act on errands, one after the other.

    Args:
        model: as for `Actor`.
        tokenizer: as for `Actor`.
        errands: the errands.
        tools: schemas of the tools that it is told of.
        on_progress: called after each errand with how many are done, and of how many.

    Returns:
        What became of each.
    """
    actor = Actor(model, tokenizer, tools)
    attempts: list[Attempt] = []
    for errand in errands:
        attempts.append(actor.attempt(errand))
        on_progress(len(attempts), len(errands))
    return attempts
