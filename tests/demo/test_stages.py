from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from treetrain.data.rows import read_samples
from treetrain.data.sample import Sample
from treetrain.demo.make_tokenizer import END
from treetrain.demo.models import make_small_model
from treetrain.demo.plans import PLANS
from treetrain.demo.stages import by_task, cut, generate, read_practice

PLAN = replace(PLANS["small"], tasks=2, trials=2, steps=3, errands_per_step=2)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> list[list[Sample]]:
    path = generate(PLAN, tmp_path_factory.mktemp("demo"), seed=0)
    _, tokenizer = make_small_model(0)
    return by_task(read_samples(path, tokenizer=tokenizer, expand="per_step"))


def test_each_assistant_step_is_a_sequence_that_trains_what_was_sampled(
    tasks: list[list[Sample]],
) -> None:
    _, tokenizer = make_small_model(0)
    assert [{sample.group for sample in own} for own in tasks] == [{"task-00"}, {"task-01"}]
    for sample in (sample for own in tasks for sample in own):
        trained = sample.weights != 0
        text = tokenizer.decode(sample.tokens[trained])
        assert text.startswith("<think>\n")
        assert text.endswith(END)
        # One stretch at the end of the sequence, and no thinking before it.
        first = int(trained.argmax())
        assert trained[first:].sum() == trained.sum()
        assert "<think>" not in tokenizer.decode(sample.tokens[:first])


def test_steps_of_a_trial_share_their_history(tasks: list[list[Sample]]) -> None:
    for one, other in pairwise([s for s in tasks[0] if s.trajectory == tasks[0][0].trajectory]):
        history = int((one.weights != 0).argmax())
        assert one.tokens[:history].tolist() == other.tokens[:history].tolist()


def test_cut_takes_whole_sequences_within_the_budget(tasks: list[list[Sample]]) -> None:
    own = tasks[0]
    kept = cut(own, 3000)
    assert kept == own[: len(kept)]
    assert sum(map(len, kept)) <= 3000 < sum(map(len, own[: len(kept) + 1]))
    assert cut(own, 1) == own[:2]


def test_small_model_follows_its_seed() -> None:
    one, other, third = (make_small_model(seed)[0].state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(value, other[name]) for name, value in one.items())
    assert any(not torch.equal(value, third[name]) for name, value in one.items())


def test_practice_is_one_group_of_sequences_for_each_errand(tmp_path: Path) -> None:
    _, tokenizer = make_small_model(0)
    errands = read_practice(PLAN, tmp_path, tokenizer, seed=0)
    assert len(errands) == PLAN.steps * PLAN.errands_per_step
    rows = (tmp_path / "practice.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(rows) == len(errands)
    for own in errands:
        assert len({sample.group for sample in own}) == 1
        assert tokenizer.decode(own[-1].tokens).rstrip().endswith(END)
