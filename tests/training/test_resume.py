from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file
from tests.training import runs
from tests.training.runs import make_varied_samples

from treetrain.data.sample import Sample
from treetrain.testing.models import make_tiny_model
from treetrain.training.adapters import add_lora
from treetrain.training.checkpoint_folders import find_checkpoints
from treetrain.training.output import cut_metrics
from treetrain.training.run import run_training
from treetrain.training.settings import LoraConfig

LORA = LoraConfig(r=2, alpha=4)  # pyright: ignore[reportCallIssue]


def make_samples():
    return make_varied_samples(5)


def make_config(output, **values):
    values = {
        "optimizer": {"lr": 1e-2, "weight_decay": 0.1},
        "schedule": {"kind": "cosine", "warmup_steps": 2},
        "steps": 5,
        "save_every": 1,
        "keep_last": None,
        "accumulation": 2,
        "tree": {"max_tokens": 30},
        "check": {"on_difference": "off"},
        **values,
    }
    return runs.make_config(output, **values)


def make_model(lora=False, family="llama", dtype=torch.float32):
    model = make_tiny_model(family, dtype=dtype)
    return add_lora(model, LORA, seed=3) if lora else model


def saved_files(output):
    names = ["model.safetensors", "adapter_model.safetensors"]
    return {name: load_file(output / name) for name in names if (output / name).exists()}


def assert_equal_runs(one, other):
    """Weights, the optimiser's state and the figures of two finished runs, bit by bit."""
    weights, same = saved_files(one), saved_files(other)
    assert weights.keys() == same.keys()
    assert weights
    for name, tensors in weights.items():
        assert tensors.keys() == same[name].keys()
        assert all(torch.equal(tensors[key], same[name][key]) for key in tensors)
    states = [
        torch.load(find_checkpoints(output)[-1] / "optimizer.pt", weights_only=True)["state"]
        for output in (one, other)
    ]
    assert states[0].keys() == states[1].keys()
    for number, state in states[0].items():
        assert all(torch.equal(state[key], states[1][number][key]) for key in state)
    lines = [
        [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
        for output in (one, other)
    ]
    timed = {"seconds", "flat_tokens_per_second", "tree_tokens_per_second"}
    for line, again in zip(*lines, strict=True):
        assert {key: line[key] for key in line.keys() - timed} == {
            key: again[key] for key in again.keys() - timed
        }


class Killed(BaseException):
    """Ends a run without a word, as a kill does."""


def kill_in(step):
    def kill():
        raise Killed

    return runs.after(step, kill)


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({}, {}),
        ({"tree": {"max_tokens": 8}}, {}),
        ({"tree": {"max_tokens": 8, "activations": "recompute"}, "accumulation": 1}, {}),
        (
            {
                "tree": {"max_tokens": 20, "larger": "split"},
                "data": {"files": "x", "shuffle": False},
            },
            {},
        ),
        ({"tree": {"max_tokens": 12}}, {"lora": True}),
        ({"autocast": "bfloat16"}, {}),
        ({"dtype": "bfloat16"}, {"dtype": torch.bfloat16}),
        (
            {
                "router": {"form": "batch", "load_balancing": 0.1, "z": 0.1},
                "tree": {"max_tokens": 60},
            },
            {"family": "qwen3_moe"},
        ),
        (
            {
                "loss": {
                    "name": "grpo",
                    "old_logprobs": "start",
                    "clip_low": 0.2,
                    "clip_high": 0.3,
                    "reference": "start",
                    "kl_coefficient": 0.1,
                },
            },
            {},
        ),
        ({"evaluation": {"share": 0.2, "every": 3}}, {}),
    ],
    ids=[
        "whole",
        "partitions",
        "recompute",
        "split",
        "lora",
        "autocast",
        "bfloat16",
        "routers",
        "grpo",
        "evaluation",
    ],
)
def test_a_resumed_run_ends_with_the_bits_of_an_unbroken_one(tmp_path, settings, kind):
    samples = make_samples()
    unbroken = tmp_path / "unbroken"
    run_training(make_model(**kind), samples, make_config(unbroken, **settings), say=len)
    broken = tmp_path / "broken"
    config = make_config(broken, **settings)
    for step, resume in ((2, False), (4, True)):
        with pytest.raises(Killed):
            run_training(
                make_model(**kind),
                samples,
                config,
                resume=resume,
                watches=kill_in(step),
                say=len,
            )
        # The step that was killed has its line, but no checkpoint.
        assert [path.name for path in find_checkpoints(broken)][-1] == f"checkpoint-{step - 1:06d}"
    torch.rand(5)
    said = []
    done = run_training(make_model(**kind), samples, config, resume=True, say=said.append)
    assert [metrics.step for metrics in done] == [4, 5]
    assert any("resumed from checkpoint-000003: 3 of 5 steps done" in line for line in said)
    assert_equal_runs(unbroken, broken)


def test_a_finished_run_that_is_resumed_stays_what_it_is(tmp_path):
    config = make_config(tmp_path / "out", steps=2)
    run_training(make_model(), make_samples(), config, say=len)
    before = saved_files(tmp_path / "out")
    said = []
    assert run_training(make_model(), make_samples(), config, resume=True, say=said.append) == []
    after = saved_files(tmp_path / "out")["model.safetensors"]
    assert all(torch.equal(after[key], value) for key, value in before["model.safetensors"].items())
    assert "no step was left to train" in said[-1]


def test_a_run_with_a_constant_rate_may_be_made_longer(tmp_path):
    options = {"schedule": {"kind": "constant", "warmup_steps": 2}}
    config = make_config(tmp_path / "short", steps=3, **options)
    run_training(make_model(), make_samples(), config, say=len)
    longer = make_config(tmp_path / "short", steps=5, **options)
    run_training(make_model(), make_samples(), longer, resume=True, say=len)
    at_once = make_config(tmp_path / "long", steps=5, **options)
    run_training(make_model(), make_samples(), at_once, say=len)
    assert_equal_runs(tmp_path / "long", tmp_path / "short")


def test_another_configuration_or_other_data_are_refused_key_by_key(tmp_path):
    run_training(make_model(), make_samples(), make_config(tmp_path / "out", steps=2), say=len)

    def resume(samples, **values):
        config = make_config(tmp_path / "out", **{"steps": 2, **values})
        run_training(make_model(), samples, config, resume=True, say=len)

    with pytest.raises(ValueError, match=r"\(there -> here\): optimizer\.lr: 0\.01 -> 0\.02; seed"):
        resume(make_samples(), optimizer={"lr": 2e-2, "weight_decay": 0.1}, seed=4)
    with pytest.raises(ValueError, match=r"here\): steps: 2 -> 3"):
        resume(make_samples(), steps=3)
    with pytest.raises(
        ValueError, match=r"here\): data\.sequences: \d+ -> \d+; data\.flat_tokens: \d+ -> \d+$"
    ):
        resume(make_samples()[1:])
    samples = make_samples()
    samples[2] = Sample(samples[2].tokens, [1.0] * len(samples[2]), group=2, trajectory=2)
    with pytest.raises(
        ValueError, match=r"here\): data\.weights: other values; data\.advantage: o"
    ):
        resume(samples)
    # What changes nothing that is computed may change, the place of the files too.
    resume(make_samples(), data={"files": "elsewhere"}, keep_last=1, save_every=5)
    assert len(find_checkpoints(tmp_path / "out")) == 2


def test_a_checkpoint_that_was_cut_short_is_refused_by_the_name_of_its_file(tmp_path):
    config = make_config(tmp_path / "out", steps=2)
    run_training(make_model(), make_samples(), config, say=len)
    last = find_checkpoints(tmp_path / "out")[-1]
    for name in ("model.safetensors", "optimizer.pt", "rng_state.pth", "trainer_state.json"):
        whole = (last / name).read_bytes()
        (last / name).write_bytes(whole[:-1])
        with pytest.raises(ValueError, match=rf"000002/{name}: must have [\d,]+ bytes, got"):
            run_training(make_model(), make_samples(), config, resume=True, say=len)
        (last / name).unlink()
        with pytest.raises(
            ValueError, match=rf"{name}: must be a file of .* bytes, got none; move"
        ):
            run_training(make_model(), make_samples(), config, resume=True, say=len)
        (last / name).write_bytes(whole)
    # The way out that the message names.
    shutil.move(last, tmp_path / "away")
    done = run_training(make_model(), make_samples(), config, resume=True, say=len)
    assert [metrics.step for metrics in done] == [2]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("files.json", "[]", "files.json: must list the files with their sizes, got"),
        ("files.json", '{"optimizer.pt": "3"}', "must list the files with their sizes, got"),
        (
            "files.json",
            "[" * 100_000,
            "files.json: must list the files, got .* less deeply .*; move",
        ),
        ("trainer_state.json", "[]", "trainer_state.json: must be one JSON object, got list"),
        ("trainer_state.json", "{}", "trainer_state.json: field 'global_step' is required"),
        ("trainer_state.json", "[" * 100_000, "trainer_state.json: must be nested less deeply"),
        ("generation_config.json", "[]", "must be a checkpoint of this run's model, got TypeError"),
        ("optimizer.pt", "no pickle", "must be a checkpoint of this run's model, got"),
    ],
)
def test_a_file_of_a_checkpoint_that_holds_something_else_is_named(tmp_path, name, text, message):
    config = make_config(tmp_path / "out", steps=1)
    run_training(make_model(), make_samples(), config, say=len)
    last = find_checkpoints(tmp_path / "out")[-1]
    (last / name).write_text(text)
    if name != "files.json":
        sizes = json.loads((last / "files.json").read_text())
        (last / "files.json").write_text(json.dumps({**sizes, name: len(text)}))
    with pytest.raises(ValueError, match=message):
        run_training(make_model(), make_samples(), config, resume=True, say=len)


def test_a_damaged_config_of_a_checkpoint_makes_no_model_of_other_sizes(tmp_path, monkeypatch):
    config = make_config(tmp_path / "out", steps=1)
    run_training(make_model(), make_samples(), config, say=len)
    last = find_checkpoints(tmp_path / "out")[-1]
    # Which leaves the sizes to the defaults of the type: billions of parameters.
    (last / "config.json").write_text("{}")
    sizes = json.loads((last / "files.json").read_text())
    (last / "files.json").write_text(json.dumps({**sizes, "config.json": 2}))
    model = make_model()
    made = []
    make = type(model).__init__

    def note(self, config, *args, **kwargs):
        made.append(config.hidden_size)
        assert config.hidden_size == model.config.hidden_size
        make(self, config, *args, **kwargs)

    monkeypatch.setattr(type(model), "__init__", note)
    assert run_training(model, make_samples(), config, resume=True, say=len) == []
    assert made


def test_a_checkpoint_without_a_place_is_told_with_the_way_out(tmp_path):
    config = make_config(tmp_path / "out", steps=1)
    run_training(make_model(), make_samples(), config, say=len)
    last = find_checkpoints(tmp_path / "out")[-1]
    (last / "trainer_state.json").unlink()
    (last / "files.json").write_text("{}")
    with pytest.raises(ValueError, match=r"trainer_state\.json: must be a file, got none; move"):
        run_training(make_model(), make_samples(), config, resume=True, say=len)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"global_step": 2},
            "'global_step' must be the step that the folder is named after, got 2",
        ),
        ({"global_step": "1"}, "trainer_state.json: field 'global_step' must be a valid integer"),
        ({"fingerprint": {}}, "trainer_state.json: fingerprint must have the part 'config', got"),
        ({"fingerprint": {"config": 3}}, "field 'fingerprint.config' must be a valid dictionary"),
        ({"versions": None}, "field 'versions' must be a valid dictionary"),
    ],
)
def test_a_place_that_cannot_be_is_refused(tmp_path, change, message):
    config = make_config(tmp_path / "out", steps=1)
    run_training(make_model(), make_samples(), config, say=len)
    last = find_checkpoints(tmp_path / "out")[-1]
    state = json.loads((last / "trainer_state.json").read_text())
    text = json.dumps({**state, **change})
    (last / "trainer_state.json").write_text(text)
    sizes = json.loads((last / "files.json").read_text())
    (last / "files.json").write_text(json.dumps({**sizes, "trainer_state.json": len(text)}))
    with pytest.raises(ValueError, match=f"{message}.*; move .* away"):
        run_training(make_model(), make_samples(), config, resume=True, say=len)


def test_figures_behind_the_last_that_is_kept_may_be_anything_and_others_may_not(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2}\n{"step": 3}\n\x00\xff\n[[[\n{"step": 4, "lo')
    cut_metrics(tmp_path, 2)
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'
    for wrong in (b"\xff", b"[" * 100_000, b"[]", b'{"step": true}'):
        path.write_bytes(b'{"step": 1}\n' + wrong + b'\n{"step": 2}\n')
        with pytest.raises(
            ValueError, match=r"metrics.jsonl:2: must be .*; mend or remove the line"
        ):
            cut_metrics(tmp_path, 2)


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    config = make_config(tmp_path / "out", steps=1)
    run_training(make_model(), make_samples(), config, say=len)
    with pytest.raises(ValueError, match=r"must be a checkpoint of this run's model, got"):
        run_training(make_model(family="qwen3"), make_samples(), config, resume=True, say=len)


def test_a_pickle_in_a_checkpoint_runs_no_code(tmp_path):
    config = make_config(tmp_path / "out", steps=1)
    run_training(make_model(), make_samples(), config, say=len)
    last = find_checkpoints(tmp_path / "out")[-1]

    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    torch.save(Evil(), last / "optimizer.pt")
    sizes = json.loads((last / "files.json").read_text())
    sizes["optimizer.pt"] = (last / "optimizer.pt").stat().st_size
    (last / "files.json").write_text(json.dumps(sizes))
    with pytest.raises(ValueError, match="must be a checkpoint of this run's model"):
        run_training(make_model(), make_samples(), config, resume=True, say=len)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("change", ["shape", "name", "nothing"])
def test_a_state_of_the_optimizer_that_does_not_fit_is_refused(tmp_path, change):
    config = make_config(tmp_path / "out", steps=1)
    run_training(make_model(), make_samples(), config, say=len)
    last = find_checkpoints(tmp_path / "out")[-1]
    held = torch.load(last / "optimizer.pt", weights_only=True)
    first = held["state"][0]
    if change == "shape":
        # A fused kernel would write past its end.
        first["exp_avg"] = first["exp_avg"].flatten()[:1]
    elif change == "name":
        del first["exp_avg_sq"]
    else:
        held["state"] = {}
    torch.save(held, last / "optimizer.pt")
    sizes = json.loads((last / "files.json").read_text())
    sizes["optimizer.pt"] = (last / "optimizer.pt").stat().st_size
    (last / "files.json").write_text(json.dumps(sizes))
    with pytest.raises(ValueError, match=r"got RuntimeError: optimizer\.pt with.*; move .* away"):
        run_training(make_model(), make_samples(), config, resume=True, say=len)


def test_there_must_be_a_run_to_resume(tmp_path):
    with pytest.raises(ValueError, match="output must hold a run to resume, got"):
        run_training(
            make_model(), make_samples(), make_config(tmp_path / "out"), resume=True, say=len
        )


def test_a_run_that_ended_before_its_first_checkpoint_begins_again_and_says_so(tmp_path):
    config = make_config(tmp_path / "out", save_every=5, steps=2)
    with pytest.raises(Killed):
        run_training(make_model(), make_samples(), config, watches=kill_in(1), say=len)
    said = []
    done = run_training(make_model(), make_samples(), config, resume=True, say=said.append)
    assert [metrics.step for metrics in done] == [1, 2]
    assert "no whole checkpoint" in said[0]
    assert len((tmp_path / "out" / "metrics.jsonl").read_text().splitlines()) == 2


def test_a_run_cannot_be_made_shorter_than_it_is(tmp_path):
    options = {"schedule": {"kind": "constant"}}
    config = make_config(tmp_path / "out", steps=2, **options)
    run_training(make_model(), make_samples(), config, say=len)
    shorter = make_config(tmp_path / "out", steps=1, **options)
    with pytest.raises(ValueError, match=r"at least the 2 that checkpoint-000002 has done, got 1"):
        run_training(make_model(), make_samples(), shorter, resume=True, say=len)


@pytest.mark.parametrize("lora", [True, False])
def test_another_model_under_the_same_name_is_refused_where_a_step_depends_on_it(tmp_path, lora):
    loss = {"name": "plain", "reference": "start", "kl_coefficient": 0.1}
    config = make_config(tmp_path / "out", steps=1, **({} if lora else {"loss": loss}))
    run_training(make_model(lora), make_samples(), config, say=len)
    run_training(make_model(lora), make_samples(), config, resume=True, say=len)
    other = make_model(lora)
    with torch.no_grad():
        other.get_input_embeddings().weight[5] += 0.5
    with pytest.raises(ValueError, match=r"here\): model: other weights before the first step$"):
        run_training(other, make_samples(), config, resume=True, say=len)


def test_weights_that_a_checkpoint_holds_may_have_been_others(tmp_path):
    config = make_config(tmp_path / "out", steps=1)
    run_training(make_model(), make_samples(), config, say=len)
    other = make_model()
    with torch.no_grad():
        other.lm_head.weight += 0.5
    run_training(other, make_samples(), config, resume=True, say=len)


def test_a_trained_model_without_checkpoints_is_not_trained_anew_by_resuming(tmp_path):
    config = make_config(tmp_path / "out", steps=1, save_every=None)
    run_training(make_model(), make_samples(), config, say=len)
    before = saved_files(tmp_path / "out")
    with pytest.raises(ValueError, match=r"must hold a checkpoint to resume from, .*overwrite"):
        run_training(make_model(), make_samples(), config, resume=True, say=len)
    assert saved_files(tmp_path / "out").keys() == before.keys()
