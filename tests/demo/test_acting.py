from __future__ import annotations

import copy
import json
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from treetrain.demo import acting
from treetrain.demo.acting import Actor, act_on, read_step
from treetrain.demo.agent import Act
from treetrain.demo.greenhouse import TOOLS
from treetrain.demo.make_tokenizer import END
from treetrain.demo.models import make_small_model
from treetrain.demo.practice import PRACTICE_TOOLS, draw_held_out
from treetrain.demo.trajectories import make_message, open_conversation


def write(act: Act) -> str:
    """A step as the chat template writes it."""
    _, tokenizer = make_small_model(0)
    before = open_conversation(draw_held_out(1, seed=0)[0].task)
    prompt, whole = (
        tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
        for messages, prompt in ((before, True), ([*before, make_message(act, 2)], False))
    )
    return whole.removeprefix(prompt).removesuffix("\n")


@pytest.mark.parametrize(
    "act",
    [
        Act("I look.", "", "list_benches"),
        Act("Dry.\nSo:", "I water it.", "water", {"bench": 3, "litres": 2}),
        Act("Done.", "It is wet now."),
    ],
)
def test_step_comes_back_from_the_text_of_the_template(act: Act) -> None:
    assert read_step(write(act)) == act


@pytest.mark.parametrize(
    "text",
    [
        "<think>\nI go on and on",
        "no thought<|end|>",
        "<think>\nx\n</think>\n<tool_call>\nwater 3\n</tool_call><|end|>",
        "<think>\nx\n</think>\n<tool_call>\nwater {}<|end|>",
        '<think>\nx\n</think>\n<tool_call>\nwater {"bench": \n</tool_call><|end|>',
    ],
)
def test_malformed_step_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        read_step(text)


def scripted(monkeypatch: pytest.MonkeyPatch, steps: list[str]) -> Actor:
    model, tokenizer = make_small_model(0)
    turns = iter(steps)
    monkeypatch.setattr(Actor, "_write", lambda self, messages: next(turns))
    return Actor(model, tokenizer, PRACTICE_TOOLS)


def test_tools_run_and_the_state_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    (errand,) = draw_held_out(1, seed=0)
    routine, own = errand.task.routine(Random(0)), copy.deepcopy(errand.greenhouse)
    act, acts = next(routine), []
    while act.tool is not None:
        acts.append(act)
        act = routine.send(own.call(act.tool, act.arguments))
    steps = [write(act) for act in [*acts, act]]
    attempt = scripted(monkeypatch, steps).attempt(errand)
    assert (attempt.solved, attempt.ended, attempt.calls) == (True, "finished", len(acts))
    # The greenhouse that was handed over is as it was.
    assert errand.greenhouse == draw_held_out(1, seed=0)[0].greenhouse
    lazy = scripted(monkeypatch, [steps[-1]]).attempt(errand)
    assert (lazy.solved, lazy.ended, lazy.calls) == (False, "finished", 0)


def test_call_that_the_greenhouse_cannot_run_ends_the_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step = write(Act("x", "", "water", {"bench": 11, "litres": 1}))
    attempt = scripted(monkeypatch, [step]).attempt(draw_held_out(1, seed=0)[0])
    assert attempt.ended == "refused"


def test_endless_attempt_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [write(Act("x", "", "list_benches"))] * (acting.MAX_STEPS + 1)
    attempt = scripted(monkeypatch, steps).attempt(draw_held_out(1, seed=0)[0])
    assert (attempt.ended, attempt.calls) == ("too long", acting.MAX_STEPS)


def test_cache_kept_between_steps_writes_what_generate_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(acting, "MAX_STEP_TOKENS", 12)
    model, tokenizer = make_small_model(0)
    # Weights that tell tokens apart: an untrained model repeats itself.
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)
    actor = Actor(model, tokenizer, TOOLS)
    written = set()
    for errand in draw_held_out(3, seed=0):
        messages = open_conversation(errand.task)
        prompt = tokenizer.apply_chat_template(
            messages, tools=list(TOOLS), tokenize=False, add_generation_prompt=True
        )
        tokens = tokenizer(prompt, return_tensors="pt")["input_ids"]
        new = model.generate(tokens, max_new_tokens=12, do_sample=False)[0, tokens.shape[1] :]
        assert actor._write(messages) == tokenizer.decode(new)
        written.add(tokenizer.decode(new))
    assert len(written) > 1


class Speaker:
    """A model that says given tokens, whatever it reads."""

    def __init__(self, model: PreTrainedModel, tokens: list[int]) -> None:
        self.config = model.config
        self._tokens = iter(tokens)

    def forward(self, tokens: torch.Tensor, **call: Any) -> SimpleNamespace:
        logits = torch.nn.functional.one_hot(torch.tensor([[next(self._tokens)]]), 1 << 16)
        return SimpleNamespace(logits=logits)

    __call__ = forward


def test_a_turn_ends_where_its_end_is_several_tokens() -> None:
    model, tokenizer = make_small_model(0)
    step = write(Act("x", "", "forecast"))
    pieces = step.removesuffix(END), *END
    tokens = [one for piece in pieces for one in tokenizer(piece)["input_ids"]]
    assert tokenizer.eos_token_id not in tokens
    actor = Actor(Speaker(model, [*tokens, *tokens]), tokenizer, PRACTICE_TOOLS)
    assert actor._write(open_conversation(draw_held_out(1, seed=0)[0].task)) == step


def test_untrained_model_solves_nothing() -> None:
    model, tokenizer = make_small_model(0)
    told: list[tuple[int, int]] = []
    attempts = act_on(
        model,
        tokenizer,
        draw_held_out(2, seed=0),
        tools=PRACTICE_TOOLS,
        on_progress=lambda *progress: told.append(progress),
    )
    assert [attempt.ended for attempt in attempts] == ["malformed"] * 2
    assert told == [(1, 2), (2, 2)]
    assert json.dumps([vars(attempt) for attempt in attempts])
