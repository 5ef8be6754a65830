from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from treetrain.data.rows import read_samples
from treetrain.data.sample import Sample
from treetrain.demo.make_tokenizer import END
from treetrain.demo.measure import Timing, separate_step, time_interleaved, tree_step
from treetrain.demo.models import make_small_model
from treetrain.demo.plans import Plan
from treetrain.demo.stages import by_task, cut, generate, measure, train
from treetrain.models.prepare import prepare
from treetrain.models.shape import measure_shape
from treetrain.testing.models import make_tiny_model

PLAN = Plan(
    tasks=2,
    trials=2,
    verified_tokens=2000,
    steps=4,
    learning_rate=1e-2,
    measured_tokens=2000,
    rounds=2,
)
SEQUENCES = ([1, 2, 3, 4, 5], [1, 2, 3, 6, 7], [1, 2, 3, 6, 7, 8, 9])


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


def test_both_ways_give_the_same_loss_and_gradients() -> None:
    samples = [Sample(tokens, [0, 1, 0.5, 1, 2, 1, 1][: len(tokens)]) for tokens in SEQUENCES]
    plain, packed = make_tiny_model("llama"), make_tiny_model("llama")
    prepare(packed)
    assert tree_step(packed, samples) == pytest.approx(separate_step(plain, samples), rel=1e-5)
    pairs = [
        (ours.grad, theirs.grad)
        for ours, theirs in zip(packed.parameters(), plain.parameters(), strict=True)
        if ours.grad is not None and theirs.grad is not None
    ]
    assert len(pairs) == len(list(plain.parameters()))
    largest = max(float(theirs.abs().max()) for _, theirs in pairs)
    for ours, theirs in pairs:
        assert float((ours - theirs).abs().max()) <= 1e-5 * largest


def test_training_lowers_the_loss() -> None:
    model = make_tiny_model("llama")
    prepare(model)
    samples = [Sample(tokens) for tokens in SEQUENCES]
    steps = list(train(model, [samples, samples[1:]], PLAN))
    assert len(steps) == PLAN.steps
    assert steps[2].loss < steps[0].loss
    assert steps[3].loss < steps[1].loss
    assert [(step.flat_tokens, step.tree_tokens) for step in steps[:2]] == [(17, 9), (12, 7)]


def test_measurement_leaves_the_model_as_it_was() -> None:
    model = make_tiny_model("llama")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    implementation = model.config._attn_implementation
    told: list[tuple[int, int]] = []
    result = measure(
        model,
        [Sample(t) for t in SEQUENCES],
        PLAN,
        measure_shape(model),
        lambda done, total: told.append((done, total)),
    )
    steps = 2 * (PLAN.rounds + 1)
    assert told == [(done, steps) for done in range(1, steps + 1)]
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.config._attn_implementation == implementation
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert (result.flat_tokens, result.tree_tokens) == (17, 9)
    assert len(result.tree.seconds) == len(result.separate.seconds) == PLAN.rounds
    assert result.bound_fraction == pytest.approx(result.speedup / result.bound)


def test_contestants_take_turns_and_the_first_round_is_not_counted() -> None:
    order: list[str] = []
    timings = time_interleaved(
        {"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=3
    )
    assert order == ["a", "b"] * 4
    assert {name: len(timing.seconds) for name, timing in timings.items()} == {"a": 3, "b": 3}


def test_median_and_spread_of_a_timing() -> None:
    timing = Timing((3.0, 1.0, 2.0))
    assert timing.median == 2.0
    assert timing.spread == (1.0, 3.0)


def test_small_model_follows_its_seed() -> None:
    one, other, third = (make_small_model(seed)[0].state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(value, other[name]) for name, value in one.items())
    assert any(not torch.equal(value, third[name]) for name, value in one.items())
