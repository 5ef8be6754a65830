from __future__ import annotations

import json
import re

import pytest
from transformers import AutoConfig

from treetrain.cli.main import main

PREFIX = list(range(1, 401))
ROWS = [{"input_ids": [*PREFIX, *[500 + turn] * 300], "group": "a"} for turn in range(4)] + [
    {"input_ids": PREFIX[:30], "group": "b"}
]


@pytest.fixture
def file(write_rows):
    return str(write_rows(*ROWS, name="rows.jsonl"))


def run_json(capsys, *arguments):
    code = main(["plan", *arguments, "--json"])
    out, _ = capsys.readouterr()
    return code, json.loads(out)


def test_what_fits_is_said_not_to_need_partitions(file, capsys):
    assert main(["plan", file, "--model", "tiny:llama", "--memory", "8GiB"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "tiny:llama, float32, on cpu, memory 8.00 GiB"
    assert "no need to partition: every tree fits undivided in 8.00 GiB" in out
    for part in ("weights", "gradients", "optimizer", "activations", "keys and values", "head"):
        assert re.search(rf"^  {part} ", out, re.M), part


def test_json_has_the_figures(file, capsys):
    code, report = run_json(capsys, file, "--model", "tiny:llama", "--memory", "8GiB")
    assert code == 0
    assert report["memory"] == 8 * 2**30
    assert [group["group"] for group in report["groups"]] == ["a", "b"]
    first = report["groups"][0]
    assert (first["tree_tokens"], first["longest_path"]) == (1600, 700)
    assert (first["partitions"], first["lower_bound"]) == (1, 1)
    assert first["modes"] == {"keep": 1, "recompute": 0, "offload": 0}
    assert first["cost"] == {"relative": 1.0, "recomputed_tokens": 0, "moved_bytes": 0}
    assert 0 < first["estimate"]["peak_bytes"] <= report["memory"]


def test_what_does_not_fit_undivided_is_divided_within_the_memory(file, capsys):
    arguments = (file, "--model", "tiny:llama", "--group", "a")
    undivided = run_json(capsys, *arguments, "--memory", "8GiB")[1]["groups"][0]
    memory = undivided["estimate"]["peak_bytes"] - 1
    code, report = run_json(capsys, *arguments, "--memory", str(memory))
    plan = report["groups"][0]
    assert code == 0
    assert plan["partitions"] > 1
    assert plan["estimate"]["peak_bytes"] <= memory
    assert main(["plan", *arguments, "--memory", str(memory)]) == 0
    assert "1 of 1 tree has to be partitioned" in capsys.readouterr().out


def test_a_capacity_and_a_mode_are_taken_as_named(file, capsys):
    _, report = run_json(
        capsys, file, "--model", "tiny:llama", "--capacity", "500", "--mode", "recompute"
    )
    first = report["groups"][0]
    assert report["memory"] is None
    assert first["capacity"] == 500
    assert first["modes"]["recompute"] > 0
    assert first["cost"]["relative"] > 1


def test_all_groups_in_one_step(file, capsys):
    _, report = run_json(capsys, file, "--model", "tiny:llama", "--memory", "8GiB", "--together")
    (only,) = report["groups"]
    assert (only["group"], only["tree_tokens"]) == ("(all groups)", 1630)


def test_too_little_memory_is_2_and_names_what_works(file, capsys):
    arguments = ["plan", file, "--model", "tiny:llama", "--group", "a"]
    assert main([*arguments, "--memory", "1MiB"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("treetrain: group a: --memory must be at least ")
    least = re.search(r"at least (\d+) bytes", error)[1]
    assert main([*arguments, "--memory", least]) == 0


def test_a_config_without_weights_is_enough(file, capsys, tmp_path):
    config = AutoConfig.for_model(
        "llama", hidden_size=4096, intermediate_size=14336, num_hidden_layers=2, vocab_size=1000
    )
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(tmp_path / "model")
    arguments = [file, "--model", str(tmp_path / "model"), "--memory", "80GiB"]
    _, half = run_json(capsys, *arguments, "--dtype", "bfloat16", "--device", "cuda")
    _, none = run_json(capsys, *arguments, "--dtype", "bfloat16", "--optimizer", "none")
    _, whole = run_json(capsys, *arguments)
    weights = [report["groups"][0]["estimate"]["weights"] for report in (half, none, whole)]
    assert weights[0] == weights[1] == pytest.approx(weights[2] / 2, rel=1e-5)
    assert half["groups"][0]["estimate"]["optimizer"] > 0
    assert none["groups"][0]["estimate"]["optimizer"] == 0
    assert half["device"] == "cuda"


def test_checkpointing_takes_less(file, capsys):
    arguments = (file, "--model", "tiny:llama", "--memory", "8GiB", "--group", "a")
    plain = run_json(capsys, *arguments)[1]["groups"][0]["estimate"]
    again = run_json(capsys, *arguments, "--gradient-checkpointing")[1]["groups"][0]["estimate"]
    assert again["peak_bytes"] < plain["peak_bytes"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--memory or --capacity must be given, got neither"),
        (["--memory", "80 Gi"], "--memory must be a size such as 80GiB"),
        (["--memory", "8GiB", "--mode", "offload"], "mode must be 'auto', 'keep' or 'recompute'"),
        (["--capacity", "0"], "--capacity must be at least 1 token, got 0"),
        (["--memory", "8GiB", "--group", "z"], "--group must be one of a, b, got 'z'"),
    ],
)
def test_wrong_input_is_2_and_named(file, capsys, arguments, message):
    assert main(["plan", file, "--model", "tiny:llama", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_model_that_cannot_be_trained_on_trees_is_refused(file, capsys):
    assert main(["plan", file, "--model", "tiny:mamba", "--memory", "8GiB"]) == 2
    assert "convolves" in capsys.readouterr().err


def test_a_file_that_is_not_there_is_told_first(capsys):
    assert main(["plan", "nowhere.jsonl", "--model", "tiny:llama", "--memory", "8GiB"]) == 2
    assert "nowhere.jsonl: No such file" in capsys.readouterr().err
