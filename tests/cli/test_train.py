from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from treetrain.cli.main import main
from treetrain.cli.tokenizers import load_tokenizer
from treetrain.cli.train import build_model
from treetrain.data.rows import read_samples
from treetrain.demo.trajectories import make_rows, write_rows
from treetrain.losses.policy import policy_loss
from treetrain.models.prepare import prepare
from treetrain.packing.batch import pack
from treetrain.training.config_file import load_config

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_agent.yaml"


@pytest.fixture
def config(tmp_path):
    rows = tmp_path / "rows.jsonl"
    write_rows(make_rows(tasks=2, trials=2, seed=0), rows)
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
    values = {
        "model": {"scratch": {"type": "llama", "config": sizes}},
        "tokenizer": "demo",
        "data": {"files": str(rows), "expand": "per_step", "limit_tokens": 6000},
        "output": str(tmp_path / "out"),
        "reduction": "token_mean",
        "optimizer": {"lr": 1e-2},
        "steps": 4,
        "check": {"flat_tokens": 800},
    }
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def test_training_from_a_file_of_trajectories_ends_with_a_folder_that_loads_and_generates(
    config, tmp_path, capsys
):
    assert main(["train", str(config)]) == 0
    out, err = capsys.readouterr()
    assert "first check" in out
    assert "note: limit of 6,000 flat tokens" in err
    said = err.splitlines()
    assert said[0] == "reading the data"
    assert said[-1] == "training step: 0 of 4"
    assert "first check, separate: 0 of " in err
    assert "\r" not in err
    output = tmp_path / "out"
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert lines[0]["flat_tokens"] > 2 * lines[0]["tree_tokens"]
    page = (output / "report.html").read_text(encoding="utf-8")
    for heading in ("Flat and tree", "Check", "Run", "Trees", "Groups", "Configuration"):
        assert f"<h2>{heading}</h2>" in page
    assert "&lt;|assistant|&gt;" in page  # trees are shown as text
    assert f"report: {output / 'report.html'}" in out
    model = AutoModelForCausalLM.from_pretrained(output)
    tokenizer = AutoTokenizer.from_pretrained(output)
    ids = tokenizer("water", return_tensors="pt")["input_ids"]
    assert model.generate(ids, max_new_tokens=3, do_sample=False).shape[1] > ids.shape[1]
    assert model.config.vocab_size == len(tokenizer)


def test_a_run_that_is_interrupted_or_fails_leaves_its_report(config, tmp_path, monkeypatch):
    from treetrain.training.display import Display

    def stop(self: Display, metrics: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Display, "tell", stop)
    assert main(["train", str(config)]) == 130
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "<dt>steps</dt><dd>1</dd>" in page


def test_a_report_that_cannot_be_written_hides_no_trained_model(
    config, tmp_path, monkeypatch, capsys
):
    from treetrain.cli import reporting

    def fail(*args: object, **kwargs: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(reporting, "write_report", fail)
    assert main(["train", str(config)]) == 0
    assert "note: report.html was not written: no space left" in capsys.readouterr().err
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_a_tracker_that_is_not_installed_is_refused_before_anything_is_read(
    config, monkeypatch, capsys
):
    from treetrain.training import tracker_names

    monkeypatch.setattr(tracker_names, "find_spec", lambda name: None)
    assert main(["train", str(config), "--set", "trackers=[wandb]"]) == 2
    err = capsys.readouterr().err
    assert "pip install wandb" in err
    assert "reading the data" not in err


def test_a_trained_folder_can_be_trained_on_and_set_changes_the_file(config, tmp_path):
    assert main(["train", str(config), "--set", "steps=1"]) == 0
    first = tmp_path / "out"
    second = tmp_path / "second"
    changes = [f"output={second}", "model.scratch=null", f"model.path={first}", "steps=1"]
    words = [word for change in changes for word in ("--set", change)]
    assert main(["train", str(config), *words, "--set", "tokenizer=null"]) == 0
    one, other = (AutoModelForCausalLM.from_pretrained(folder) for folder in (first, second))
    assert not torch.equal(one.lm_head.weight, other.lm_head.weight)
    assert yaml.safe_load((second / "config.yaml").read_text())["model"]["path"] == str(first)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("redction=sum", "did you mean 'reduction'?"),
        ("model.scratch.type=lama", "did you mean 'llama'?"),
        ("model.scratch.config.hiden_size=4", "did you mean 'hidden_size'?"),
        ("model.scratch.config.hidden_size=33", "(33) is not a multiple of"),
        ("model.scratch.config.hidden_size=abc", "expected int, got str (value: 'abc')"),
        (
            "model.scratch.config.attention_dropout=0.1",
            "for each sequence: set model.scratch.config.attention_dropout to 0\n",
        ),
        ("data.files=[/nowhere.jsonl]", "/nowhere.jsonl"),
        ("data.limit_tokens=1", "shortest sequence"),
        (
            "tree.backend=magic",
            "tree.backend: must be one of auto, slices, reference, mask, got 'magic'",
        ),
    ],
)
def test_wrong_input_is_2_with_a_message(config, capsys, change, message):
    assert main(["train", str(config), "--set", change]) == 2
    assert message in capsys.readouterr().err


def test_a_model_that_is_not_there_is_told_before_rows_are_read(config, capsys):
    changes = ["model.scratch=null", "model.path=/nowhere/at/all", "data.files=[/nowhere.jsonl]"]
    words = [word for change in changes for word in ("--set", change)]
    assert main(["train", str(config), *words]) == 2
    err = capsys.readouterr().err
    assert "model must be a folder" in err
    assert "nowhere.jsonl" not in err


def test_an_earlier_run_is_refused_before_anything_is_loaded(config, tmp_path, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "metrics.jsonl").write_text("")
    assert main(["train", str(config)]) == 2
    assert "without an earlier run" in capsys.readouterr().err


def test_an_output_that_is_a_file_is_refused(config, tmp_path, capsys):
    (tmp_path / "out").write_text("")
    assert main(["train", str(config)]) == 2
    assert f"output must be a folder, got the file {tmp_path / 'out'}" in capsys.readouterr().err


def test_dropout_of_a_loaded_model_is_refused_by_its_file(config, tmp_path, capsys):
    assert main(["train", str(config), "--set", "steps=1"]) == 0
    values = json.loads((tmp_path / "out" / "config.json").read_text())
    (tmp_path / "out" / "config.json").write_text(json.dumps({**values, "attention_dropout": 0.5}))
    changes = [f"output={tmp_path / 'second'}", "model.scratch=null", f"model.path={tmp_path}/out"]
    words = [word for change in changes for word in ("--set", change)]
    assert main(["train", str(config), *words]) == 2
    message = f"set attention_dropout to 0 in the config.json of model.path, {tmp_path / 'out'}\n"
    assert capsys.readouterr().err.endswith(message)


def test_a_chat_template_that_is_not_text_is_refused_by_its_file(config, tmp_path, capsys):
    (tmp_path / "chat.jinja").write_bytes(b"\xff")
    change = f"data.chat_template={tmp_path / 'chat.jinja'}"
    assert main(["train", str(config), "--set", change]) == 2
    assert "chat.jinja: must be UTF-8, got invalid start byte" in capsys.readouterr().err


def test_the_example_is_a_valid_configuration():
    config = load_config(EXAMPLE)
    assert config.data.expand == "per_step"
    assert config.data.files[0] == "runs/demo/greenhouse.jsonl"


def test_the_example_trains_on_recorded_trajectories(shared_data, tmp_path, capsys):
    file = shared_data / "taubench-airline" / "trajectories.jsonl"
    changes = [
        f"data.files={file}",
        "data.select={group: task12}",
        "data.limit_tokens=24000",
        f"output={tmp_path / 'out'}",
        "steps=3",
        "check.flat_tokens=1",
        "model.scratch.config.hidden_size=32",
        "model.scratch.config.num_hidden_layers=1",
        "optimizer.lr=0.01",
        "schedule.kind=constant",
    ]
    words = [word for change in changes for word in ("--set", change)]
    assert main(["train", str(EXAMPLE), *words]) == 0
    metrics = (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()
    losses = [json.loads(line)["loss"] for line in metrics]
    assert losses[-1] < losses[0]


def test_a_run_is_resumed_from_the_configuration_in_its_folder(config, tmp_path, capsys):
    output = tmp_path / "out"
    constant = ["--set", "schedule.kind=constant", "--set", "save_every=1"]
    assert main(["train", str(config), *constant, "--set", "steps=2"]) == 0
    words = ["train", str(output / "config.yaml"), "--resume", "--set", "steps=4"]
    assert main(words) == 0
    assert "resumed from checkpoint-000002: 2 of 4 steps done" in capsys.readouterr().out
    lines = (output / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3, 4]
    changed = ["--resume", "--set", "optimizer.lr=0.5", "--set", "data.limit_tokens=4000"]
    assert main(["train", str(output / "config.yaml"), *changed]) == 2
    message = capsys.readouterr().err
    assert "optimizer.lr: 0.01 -> 0.5" in message
    assert "data.limit_tokens: 6000 -> 4000" in message
    tokenizer = AutoTokenizer.from_pretrained(output / "checkpoint-000004")
    assert len(tokenizer) == len(AutoTokenizer.from_pretrained(output))
    AutoModelForCausalLM.from_pretrained(output / "checkpoint-000004")


def test_adapters_and_evaluation_files_are_trained_and_read(config, tmp_path):
    base = tmp_path / "base"
    assert main(["train", str(config), "--set", "steps=1", "--set", f"output={base}"]) == 0
    changes = [
        "model.scratch=null",
        f"model.path={base}",
        "model.lora={r: 2, alpha: 4}",
        "autocast=bfloat16",
        f"evaluation={{files: {tmp_path / 'rows.jsonl'}, every: 2}}",
        "check.flat_tokens=1",
    ]
    words = [word for change in changes for word in ("--set", change)]
    assert main(["train", str(config), *words]) == 0
    assert (tmp_path / "out" / "adapter_config.json").exists()
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").open()]
    assert lines[3]["evaluation_loss"] < lines[1]["evaluation_loss"]


def start_endless(config, **streams):
    """Starts a run of many steps in a process of its own, and waits for the first."""
    words = [sys.executable, "-m", "treetrain.cli.main", "train", str(config)]
    words += ["--set", "steps=100000", "--set", "check.on_difference=off"]
    process = subprocess.Popen(words, **streams)
    metrics = config.parent / "out" / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.stat().st_size):
        time.sleep(0.05)
    return process


def assert_goes_on(output):
    """Its one checkpoint is of the last step that was done."""
    (last,) = output.glob("checkpoint-*")
    state = json.loads((last / "trainer_state.json").read_text())
    assert state["global_step"] == len((output / "metrics.jsonl").read_text().splitlines())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_end_is_130_without_a_traceback_and_leaves_a_run_to_go_on_with(
    config, tmp_path, number
):
    process = start_endless(config, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.send_signal(number)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "Ctrl-C now stops at once" in err
    assert f"go on with: treetrain train {tmp_path}/out/config.yaml --resume" in err
    assert_goes_on(tmp_path / "out")


def test_a_terminal_that_closes_leaves_a_run_to_go_on_with(config, tmp_path):
    ours, terminal = os.openpty()
    process = start_endless(
        config,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # the system then tells it
    )
    os.close(terminal)
    os.close(ours)
    assert process.wait(timeout=120) == 130
    assert_goes_on(tmp_path / "out")
    assert (tmp_path / "out" / "report.html").exists()


def test_ctrl_c_that_also_ends_the_reader_of_all_output_leaves_a_run_to_go_on_with(
    config, tmp_path
):
    # As in: treetrain train run.yaml 2>&1 | tee log
    reading, writing = os.pipe()
    process = start_endless(config, stdout=writing, stderr=writing)
    os.close(writing)
    os.close(reading)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=120) == 130
    assert_goes_on(tmp_path / "out")


def step_rows(trials):
    """Steps of a policy as a trainer records them, several for each prompt."""
    for trial in range(trials):
        prompt = [5, 6, 7 + trial // 3]
        yield {
            "prompt_ids": prompt,
            "response_ids": [20 + trial, 21, 22 + trial % 2],
            "response_mask": [1, 0, 1],
            "rollout_log_probs": [-6.9 - 0.1 * trial, 0.0, -6.8 + 0.05 * trial],
            "advantage": (-1.0) ** trial * (1 + trial),
            "uid": f"prompt {trial // 3}",
        }


@pytest.mark.parametrize("tree", [{}, {"max_tokens": 5}], ids=["whole", "partitions"])
def test_recorded_logprobs_are_trained_on_as_the_library_call_does(config, tmp_path, tree):
    rows = tmp_path / "steps.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in step_rows(6)))
    loss = {"name": "ppo", "old_logprobs": "recorded", "clip_low": 0.1, "clip_high": 0.2}
    values = {
        "data": {"files": str(rows)},
        "loss": loss,
        "tree": tree,
        "accumulation": 2,  # all rows of the data
        "dtype": "float64",
        # An eps above rounding, so that AdamW's first steps are no signs of rounding errors.
        "optimizer": {"lr": 1e-2, "eps": 1e-3},
        "steps": 3,
    }
    config.write_text(yaml.safe_dump({**yaml.safe_load(config.read_text()), **values}))
    assert main(["train", str(config)]) == 0
    settings = load_config(config)
    samples = read_samples(rows)
    model = build_model(settings, samples, load_tokenizer("demo"))
    prepare(model)
    batch = pack(samples)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-3, weight_decay=0.0)
    clips = {"clip_low": 0.1, "clip_high": 0.2}
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").open()]
    for line in lines:
        found = policy_loss(
            model, batch, "token_mean", objective="ppo", old_logprobs="recorded", **clips
        )
        optimizer.zero_grad()
        found.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        # Norms and angles are computed in float32 whatever the dtype.
        assert line["loss"] == pytest.approx(float(found.loss.detach()), rel=1e-5)
        for name in ("logprob", "ratio", "clip_fraction", "old_kl"):
            want = float(found.statistics[name])
            assert line[name] == pytest.approx(want, rel=1e-4, abs=1e-9), name
    assert lines[-1]["clip_fraction"] > 0
    trained = load_file(tmp_path / "out" / "model.safetensors")
    for name, value in trained.items():
        assert torch.allclose(value, model.state_dict()[name], rtol=1e-4, atol=1e-7), name


def test_rows_without_recorded_logprobs_are_told_by_their_line(config, tmp_path, capsys):
    rows = tmp_path / "steps.jsonl"
    given = list(step_rows(6))
    del given[4]["rollout_log_probs"]
    rows.write_text("".join(json.dumps(row) + "\n" for row in given))
    loss = "{name: ppo, old_logprobs: recorded, clip_low: 0.1, clip_high: 0.2}"
    words = ["--set", f"loss={loss}", "--set", f"data={{files: {rows}}}"]
    assert main(["train", str(config), *words]) == 2
    assert "none recorded for samples[4] (steps.jsonl:5)" in capsys.readouterr().err
    assert list((tmp_path / "out").iterdir()) == []
