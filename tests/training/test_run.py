from __future__ import annotations

import json
import os

import pytest
import torch
from tests.training.breaking import break_attention
from tests.training.runs import SAMPLES, make_config
from transformers import AutoModelForCausalLM

from treetrain.data.sample import Sample
from treetrain.errors import EquivalenceError, UnsupportedModelError
from treetrain.testing.models import make_tiny_model
from treetrain.testing.trees import tree_family
from treetrain.training import run as run_module
from treetrain.training.adapters import add_lora
from treetrain.training.first_check import choose_few
from treetrain.training.run import run_training
from treetrain.training.settings import LoraConfig


def test_a_run_ends_with_metrics_and_a_model_that_loads(tmp_path):
    model = make_tiny_model("llama")
    output = tmp_path / "out"
    said = []
    done = run_training(model, SAMPLES, make_config(output), say=said.append)
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert lines[-1]["loss"] == done[-1].loss < done[0].loss
    assert lines[0].keys() >= {
        "loss",
        "lr",
        "grad_norm",
        "flat_tokens",
        "tree_tokens",
        "seconds",
        "normaliser",
    }
    loaded = AutoModelForCausalLM.from_pretrained(output)
    for one, other in zip(model.parameters(), loaded.parameters(), strict=True):
        assert torch.equal(one, other)
    assert "treetrain" not in (output / "config.json").read_text()
    assert loaded.config._attn_implementation == model.config._attn_implementation == "sdpa"
    assert not model.training
    assert any("first check" in line and "equal" in line for line in said)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("lora", [None, {"r": 2, "alpha": 4}])
def test_weights_can_be_read_by_whoever_can_read_the_other_files(tmp_path, lora):
    model = make_tiny_model("llama")
    if lora is not None:
        model = add_lora(model, LoraConfig(**lora), seed=0)
    before = os.umask(0o027)
    try:
        run_training(model, SAMPLES, make_config(tmp_path / "out", save_every=1, steps=1), say=len)
    finally:
        os.umask(before)
    weights = sorted((tmp_path / "out").rglob("*.safetensors"))
    assert len(weights) == 2
    assert [path.stat().st_mode & 0o777 for path in weights] == [0o640] * 2


def test_a_tree_larger_than_a_row_trains_in_partitions_as_undivided(tmp_path):
    settings = {
        "whole": {"max_tokens": 1000},
        "kept": {"max_tokens": 12},
        "again": {"max_tokens": 12, "activations": "recompute"},
    }
    losses, said = {}, {name: [] for name in settings}
    for name, tree in settings.items():
        config = make_config(tmp_path / name, tree=tree)
        done = run_training(make_tiny_model("llama"), SAMPLES, config, say=said[name].append)
        losses[name] = [step.loss for step in done]
        assert (done[0].partitions > 2) == (name != "whole")
    assert losses["kept"] == pytest.approx(losses["whole"], rel=1e-5)
    assert losses["again"] == pytest.approx(losses["whole"], rel=1e-5)
    assert any("1 tree larger than tree.max_tokens in" in line for line in said["kept"])
    assert any("first check" in line and "partitions" in line for line in said["kept"])
    assert not any("partition" in line for line in said["whole"])


def test_a_model_on_a_dense_mask_refuses_larger_trees_with_the_way_out(tmp_path):
    config = make_config(tmp_path / "out", tree={"max_tokens": 12, "backend": "mask"})
    with pytest.raises(UnsupportedModelError, match=r"set tree\.larger=split"):
        run_training(make_tiny_model("llama"), SAMPLES, config, say=len)
    split = {"max_tokens": 20, "backend": "mask", "larger": "split"}
    said = []
    config = make_config(tmp_path / "two", tree=split)
    run_training(make_tiny_model("llama"), SAMPLES, config, say=said.append)
    assert any("computed again" in line for line in said)


def test_an_earlier_run_is_not_overwritten_unasked(tmp_path):
    output = tmp_path / "out"
    run_training(make_tiny_model("llama"), SAMPLES, make_config(output, steps=1), say=len)
    with pytest.raises(ValueError, match=r"without an earlier run, .* got .*metrics\.jsonl"):
        run_training(make_tiny_model("llama"), SAMPLES, make_config(output), say=len)
    run_training(
        make_tiny_model("llama"), SAMPLES, make_config(output, steps=1, overwrite=True), say=len
    )


def test_a_first_check_that_fails_stops_the_run_before_anything_is_trained(tmp_path, monkeypatch):
    break_attention(monkeypatch)
    model = make_tiny_model("llama")
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with pytest.raises(EquivalenceError, match="must equal separate training"):
        run_training(model, SAMPLES, make_config(tmp_path / "out"), say=len)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert list((tmp_path / "out").iterdir()) == []
    assert model.config._attn_implementation == "sdpa"


@pytest.fixture
def interrupted(monkeypatch):
    original = run_module.train_steps

    def train_one_step(*args, **options):
        for step in original(*args, **options):
            yield step
            raise KeyboardInterrupt

    def begin():
        monkeypatch.setattr(run_module, "train_steps", train_one_step)

    return begin


def test_an_interruption_leaves_metrics_and_no_model_and_says_so(tmp_path, interrupted):
    interrupted()
    model = make_tiny_model("llama")
    said = []
    with pytest.raises(KeyboardInterrupt):
        run_training(model, SAMPLES, make_config(tmp_path / "out"), say=said.append)
    assert len((tmp_path / "out" / "metrics.jsonl").read_text().splitlines()) == 1
    assert not (tmp_path / "out" / "config.json").exists()
    assert model.config._attn_implementation == "sdpa"
    assert "interrupted after step 1" in said[-1]
    assert "no model was saved" in said[-1]


def test_an_interruption_leaves_no_earlier_model_beside_the_new_metrics(tmp_path, interrupted):
    output = tmp_path / "out"
    run_training(make_tiny_model("llama"), SAMPLES, make_config(output), say=len)
    interrupted()
    with pytest.raises(KeyboardInterrupt):
        run_training(
            make_tiny_model("llama"), SAMPLES, make_config(output, overwrite=True), say=len
        )
    assert len((output / "metrics.jsonl").read_text().splitlines()) == 1
    assert not (output / "config.json").exists()
    assert not list(output.glob("*.safetensors"))


def test_an_interruption_while_saving_leaves_nothing_half_written(tmp_path, monkeypatch):
    model = make_tiny_model("llama")

    def interrupted(folder, **options):
        (folder / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(model, "save_pretrained", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_training(model, SAMPLES, make_config(tmp_path / "out", steps=1), say=len)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "check.json",
        "config.yaml",
        "metrics.jsonl",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradient_checkpointing_gives_the_same_run(tmp_path, dtype):
    losses = []
    for name, checkpointing in (("one", False), ("two", True)):
        model = {"path": "unused", "gradient_checkpointing": checkpointing}
        config = make_config(tmp_path / name, model=model)
        done = run_training(make_tiny_model("llama", dtype=dtype), SAMPLES, config, say=len)
        losses.append([step.loss for step in done])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_data_without_anything_to_train_is_refused(tmp_path):
    samples = [Sample([1, 2, 3], [0, 0, 0])]
    with pytest.raises(ValueError, match="must train at least one token"):
        run_training(make_tiny_model("llama"), samples, make_config(tmp_path / "out"), say=len)


def test_the_checked_sequences_are_short_whole_and_train_something():
    samples = [
        Sample([1] * 9),
        Sample([1] * 3, [0, 0, 0]),
        Sample([1] * 5),
        Sample([1] * 4, [0, 0, 0, 0]),
    ]
    assert [len(sample) for sample in choose_few(samples, 12)] == [3, 5, 4]
    assert [len(sample) for sample in choose_few(samples, 1)] == [3, 5]


def test_a_first_check_that_only_warns_says_what_differs_and_trains(tmp_path, monkeypatch):
    break_attention(monkeypatch)
    said = []
    config = make_config(tmp_path / "out", check={"on_difference": "warn"})
    assert len(run_training(make_tiny_model("llama"), SAMPLES, config, say=said.append)) == 3
    assert any(line.startswith("note: first check: tree training differs") for line in said)
    assert json.loads((tmp_path / "out" / "check.json").read_text())["equal"] is False


def test_a_first_check_that_is_off_is_not_made(tmp_path, monkeypatch):
    break_attention(monkeypatch)
    said = []
    config = make_config(tmp_path / "out", check={"on_difference": "off"})
    run_training(make_tiny_model("llama"), SAMPLES, config, say=said.append)
    assert not any("first check" in line for line in said)
    assert not (tmp_path / "out" / "check.json").exists()


def test_held_out_groups_are_evaluated_every_so_often_and_at_the_end_and_not_trained(tmp_path):
    samples = [
        Sample(tokens, group=number % 4) for number, tokens in enumerate(tree_family()["comb"])
    ]
    said = []
    config = make_config(tmp_path / "out", evaluation={"share": 0.25, "every": 2}, steps=5)
    done = run_training(make_tiny_model("llama"), samples, config, say=said.append)
    assert [step.step for step in done if step.evaluation_loss is not None] == [2, 4, 5]
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").open()]
    assert [line["step"] for line in lines if "evaluation_loss" in line] == [2, 4, 5]
    assert lines[-1]["evaluation_loss"] == done[-1].evaluation_loss
    assert done[0].sequences < len(samples)
    assert f"evaluation loss {done[-1].evaluation_loss:.4g}" in said[-1]
    assert "evaluation: 1 sequence not trained, every 2 steps" in said


def test_evaluation_changes_nothing_that_is_trained(tmp_path):
    held = SAMPLES[:2]
    losses = []
    for name, evaluation in (("one", None), ("two", {"files": "unused", "every": 1})):
        config = make_config(tmp_path / name, evaluation=evaluation)
        done = run_training(
            make_tiny_model("llama"), SAMPLES, config, evaluated=held if evaluation else (), say=len
        )
        losses.append([step.loss for step in done])
    assert losses[0] == losses[1]


def test_observers_are_told_what_the_run_is_and_each_step(tmp_path):
    seen = []

    class Watcher:
        def __init__(self, outline):
            seen.append((outline.folder, outline.steps, outline.start, len(outline.batches)))

        def __enter__(self):
            return self

        def __exit__(self, kind, error, trace):
            seen.append(kind)

        def tell(self, metrics):
            lines = (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()
            seen.append((metrics.step, len(lines)))

    config = make_config(tmp_path / "out", steps=2)
    run_training(make_tiny_model("llama"), SAMPLES, config, watches=(Watcher,), say=len)
    assert seen == [(tmp_path / "out", 2, 0, 1), (1, 1), (2, 2), None]


@pytest.mark.parametrize(("advantages", "said_so"), [([0.0, 0.0], True), ([0.0, 1.0], False)])
def test_advantages_that_are_all_0_are_said(tmp_path, advantages, said_so):
    samples = [
        Sample([1, 2, number], advantage=advantage) for number, advantage in enumerate(advantages)
    ]
    said = []
    config = make_config(tmp_path / "out", loss={"name": "plain"}, steps=1)
    run_training(make_tiny_model("llama"), samples, config, say=said.append)
    note = "note: every advantage is 0: loss 'plain' makes no answer likelier"
    assert (note in said) is said_so
