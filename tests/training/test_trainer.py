from __future__ import annotations

import pytest
import torch
from tests.training.runs import make_varied_samples

from treetrain.models.prepare import prepare
from treetrain.packing.budget import pack_batches
from treetrain.testing.models import make_tiny_model
from treetrain.training.config import OptimizerConfig, ScheduleConfig
from treetrain.training.objective import Objective
from treetrain.training.rows import cut_large, order_windows, pack_shuffled
from treetrain.training.trainer import StepMetrics, train_steps
from treetrain.verification.widened import Widened

# An eps above rounding, so that AdamW's first steps are no signs of rounding errors.
ADAMW = OptimizerConfig(lr=1e-2, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.1)
CONSTANT = ScheduleConfig()


def train_separately(model, windows, reduction, steps):
    """Ordinary training: each sequence alone, AdamW by hand from its paper's formulas."""
    state = {name: [0.0, 0.0] for name, _ in model.named_parameters()}
    for step, samples in zip(range(1, steps + 1), windows, strict=False):
        total = sum(sample.weights[1:].sum() for sample in samples)
        divisor = {"token_mean": total, "path_mean": len(samples)}[reduction]
        model.zero_grad()
        for sample in samples:
            tokens = torch.tensor(sample.tokens)
            logits = model(input_ids=tokens[None], use_cache=False).logits[0, :-1]
            losses = torch.nn.functional.cross_entropy(logits, tokens[1:], reduction="none")
            ((losses * torch.tensor(sample.weights[1:])).sum() / divisor).backward()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                mean, square = state[name]
                mean = 0.8 * mean + 0.2 * parameter.grad
                square = 0.9 * square + 0.1 * parameter.grad**2
                state[name] = [mean, square]
                if parameter.ndim > 1:
                    parameter *= 1 - 1e-2 * 0.1
                denominator = (square / (1 - 0.9**step)).sqrt() + 1e-3
                parameter -= 1e-2 * (mean / (1 - 0.8**step)) / denominator


@pytest.mark.parametrize("reduction", ["token_mean", "path_mean"])
@pytest.mark.parametrize(
    ("max_tokens", "accumulation", "larger"),
    [(1000, 1, "split"), (20, 3, "split"), (20, 3, "partition"), (7, 1, "partition")],
)
def test_several_steps_give_the_parameters_of_separate_training(
    reduction, max_tokens, accumulation, larger
):
    split = larger == "split"
    batches = pack_batches(make_varied_samples(4), max_tokens=max_tokens, split_groups=split)
    partitions = {} if split else cut_large(batches, max_tokens)
    assert split == (not partitions)
    model = make_tiny_model("qwen3", dtype=torch.float64)
    plain = make_tiny_model("qwen3", dtype=torch.float64)
    with Widened():
        prepare(model)
        steps = train_steps(
            model,
            batches,
            Objective(reduction),
            steps=4,
            optimizer=ADAMW,
            schedule=CONSTANT,
            accumulation=accumulation,
            partitions=partitions,
            activations="recompute" if max_tokens == 7 else "keep",
        )
        done = list(steps)
        assert len(done) == 4
        assert split == (sum(step.partitions for step in done) == 0)
        windows = (
            [sample for batch in rows for sample in batch.samples]
            for rows in order_windows(batches, accumulation, seed=None)
        )
        train_separately(plain, windows, reduction, 4)
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert float((one - other).detach().abs().max()) <= 1e-10


def run(seed, steps=3, **options):
    model = make_tiny_model("llama")
    prepare(model)
    batches = pack_shuffled(make_varied_samples(4), max_tokens=30, seed=seed, split_groups=True)
    found = train_steps(
        model,
        batches,
        Objective("token_mean"),
        steps=steps,
        optimizer=ADAMW,
        schedule=CONSTANT,
        accumulation=2,
        seed=seed,
        **options,
    )
    return [step.loss for step in found], [p.detach().clone() for p in model.parameters()]


def test_a_seed_gives_the_same_run_again():
    losses, parameters = run(7)
    again, same = run(7)
    assert losses == again
    assert all(torch.equal(one, other) for one, other in zip(parameters, same, strict=True))
    assert losses != run(8)[0]


def test_loss_falls():
    losses, _ = run(1, steps=12)
    assert losses[-1] < 0.7 * losses[0]


def test_clipping_limits_the_step_and_reports_the_norm_before_it():
    model = make_tiny_model("llama")
    prepare(model)
    batches = pack_batches(make_varied_samples(4), max_tokens=1000)
    options = {"steps": 1, "optimizer": ADAMW, "schedule": CONSTANT}
    before = [parameter.detach().clone() for parameter in model.parameters()]
    (step,) = train_steps(model, batches, Objective("sum"), clip_norm=1e-9, **options)
    assert step.grad_norm > 1
    for old, new in zip(before, model.parameters(), strict=True):
        # Gradients far below eps move nothing but by decay.
        assert float((old * (1 - 1e-3 * (old.ndim > 1)) - new.detach()).abs().max()) < 1e-6


def test_every_epoch_has_every_row_once_and_a_last_step_that_may_be_smaller():
    batches = pack_batches(make_varied_samples(4), max_tokens=20)
    windows = order_windows(batches, 2, seed=3)
    per_epoch = -(-len(batches) // 2)
    orders = []
    for _ in range(2):
        rows = [next(windows) for _ in range(per_epoch)]
        assert {id(row) for window in rows for row in window} == {id(row) for row in batches}
        assert [len(window) for window in rows[:-1]] == [2] * (per_epoch - 1)
        orders.append([id(row) for window in rows for row in window])
    assert orders[0] != orders[1]


def test_figures_of_a_step():
    model = make_tiny_model("llama")
    prepare(model)
    samples = make_varied_samples(4)
    batches = pack_batches(samples, max_tokens=20)
    schedule = ScheduleConfig(kind="linear", warmup_steps=1)
    found = list(
        train_steps(
            model,
            batches,
            Objective("trajectory_mean"),
            steps=len(batches),
            optimizer=ADAMW,
            schedule=schedule,
        )
    )
    assert found[0].lr == 0.5e-2
    assert found[-1].lr == 0
    assert found[-1].epoch == 1
    assert sum(step.sequences for step in found) == len(samples)
    assert sum(step.flat_tokens for step in found) == sum(map(len, samples))
    assert sum(step.tree_tokens for step in found) == sum(batch.num_tokens for batch in batches)
    names = {(sample.group, sample.trajectory) for sample in batches[0].samples}
    assert found[0].normaliser == len(names)


def test_a_loss_that_is_not_finite_stops_the_run():
    model = make_tiny_model("llama")
    prepare(model)
    with torch.no_grad():
        model.model.norm.weight.fill_(float("inf"))
    steps = train_steps(
        model,
        pack_batches(make_varied_samples(4), max_tokens=1000),
        Objective("sum"),
        steps=1,
        optimizer=ADAMW,
        schedule=CONSTANT,
    )
    with pytest.raises(ValueError, match=r"must be finite, got loss nan .* at step 1"):
        list(steps)


def test_parameters_that_are_not_finite_after_the_last_step_stop_the_run():
    model = make_tiny_model("llama")
    prepare(model)
    # Such an eps is 0 in float32, and so are gradients of tokens that are not in the data.
    steps = train_steps(
        model,
        pack_batches(make_varied_samples(4), max_tokens=1000),
        Objective("token_mean"),
        steps=1,
        optimizer=OptimizerConfig(lr=1e-2, eps=1e-60),
        schedule=CONSTANT,
    )
    with pytest.raises(ValueError, match="must be finite after step 1, got others in model"):
        list(steps)


def test_figures_hold_statistics_and_no_number_that_json_cannot():
    metrics = StepMetrics(
        **dict.fromkeys(("step", "sequences", "flat_tokens", "tree_tokens", "partitions"), 1),
        **dict.fromkeys(("epoch", "loss", "lr", "grad_norm", "normaliser", "seconds"), 0.5),
        flat_tokens_per_second=2.0,
        tree_tokens_per_second=2.0,
        statistics={"ratio": float("inf"), "clip_fraction": 0.25},
    )
    assert metrics.figures["ratio"] is None
    assert metrics.figures["clip_fraction"] == 0.25
    assert not {"statistics", "evaluation_loss"} & metrics.figures.keys()
