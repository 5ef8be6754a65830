from __future__ import annotations

import json
from time import perf_counter

import pytest
import torch
from transformers import AutoConfig, AutoModel

from treetrain.attention import reference
from treetrain.cli.main import main
from treetrain.testing.models import make_tiny_model

PREFIX = [1, 2, 3, 4, 5, 6]
ROWS = [
    {"input_ids": [*PREFIX, 7, 8], "loss_mask": [0] * 6 + [1, 1], "group": "a"},
    {"input_ids": [*PREFIX, 9], "loss_mask": [0] * 6 + [1], "group": "a"},
    {"input_ids": [*PREFIX, 7, 8, 9], "loss_mask": [0] * 8 + [1], "group": "b"},
]


@pytest.fixture
def file(write_rows):
    return str(write_rows(*ROWS, name="rows.jsonl"))


def run_json(capsys, *arguments):
    code = main(["verify", *arguments, "--json"])
    out, err = capsys.readouterr()
    return code, json.loads(out), err


@pytest.mark.parametrize("model", ["tiny:llama", "tiny:gpt2", "tiny:gpt_oss", "tiny:deepseek_v3"])
def test_equal_is_0_and_json_has_the_figures(file, capsys, model):
    code, report, _ = run_json(capsys, file, "--model", model)
    assert code == 0
    assert report["equal"] is True
    assert report["dtype"] == "float32"
    assert (report["sequences"], report["flat_tokens"], report["tree_tokens"]) == (3, 24, 18)
    assert report["loss"]["tree"] == pytest.approx(report["loss"]["separate"], rel=1e-5)
    assert report["leaks"] == []
    for key in ("logprob_max_abs_error", "gradient_max_relative_error", "step_max_abs_error"):
        assert 0 <= report[key] < 1e-3


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_dtypes(file, capsys, dtype):
    code, report, _ = run_json(capsys, file, "--model", "tiny:qwen3_moe", "--dtype", dtype)
    assert code == 0
    assert report["dtype"] == dtype


def test_a_difference_is_1_and_says_where(file, capsys, monkeypatch):
    find = reference.find_visibility
    monkeypatch.setattr(
        reference,
        "find_visibility",
        lambda packed, **kw: (
            find(packed, **kw).new_ones(()).expand(packed.num_tokens, packed.num_tokens).tril()
        ),
    )
    monkeypatch.setattr("treetrain.models.prepare.check_on_tree", lambda *arguments: None)
    code = main(["verify", file, "--model", "tiny:llama", "--backend", "reference"])
    out = capsys.readouterr().out
    assert code == 1
    assert out.startswith("NOT EQUAL: 3 sequences")
    assert "LEAK" in out
    assert "worst token" in out
    assert "rows.jsonl:" in out


def test_on_a_pipe_each_stage_is_a_line_on_stderr(file, capsys):
    assert main(["verify", file, "--model", "tiny:llama", "--dtype", "bfloat16"]) == 0
    out, err = capsys.readouterr()
    said = [line for line in err.splitlines() if not line.startswith("note: ")]
    assert said[0] == "checking the model tiny:llama"
    assert said[1] == f"reading {file}"
    assert said[2] == "loading the model tiny:llama"
    assert said[3].startswith("3 sequences of 2 groups, 24 flat tokens: one step over each alone")
    stages = ["separate", "tree", "leaks", "float64 separate", "float64 tree"]
    assert [line.partition(":")[0] for line in said[4:]] == stages
    assert "reading" not in out


def test_limits_take_whole_sequences_and_say_what_was_cut(file, capsys):
    code, report, err = run_json(capsys, file, "--model", "tiny:llama", "--limit-tokens", "16")
    assert code == 0
    assert (report["sequences"], report["flat_tokens"]) == (2, 15)
    note = "2 of 3 sequences, 15 of 24 flat tokens, 1 of 2 groups"
    assert any(note in told for told in report["notes"])
    assert note in err
    _, report, _ = run_json(capsys, file, "--model", "tiny:llama", "--group", "b")
    assert report["sequences"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "tiny:lama"], "did you mean 'llama'"),
        (["--model", ""], "model's name, got an empty name"),
        (["--model", "/nowhere/at/all"], "model must be a folder"),
        (["--model", "tiny:llama", "--limit-tokens", "3"], "shortest sequence, 7, got 3"),
        (["--model", "tiny:llama", "--group", "z"], "--group must be one of a, b, got 'z'"),
        (["--model", "tiny:llama", "--backend", "magic"], "backend must be"),
        (["--model", "tiny:llama", "--device", "abacus"], "device must be one that torch finds"),
        (["--model", "tiny:llama", "--device", "meta"], "device must be one that computes"),
    ],
)
def test_wrong_input_is_2_with_a_message(file, capsys, arguments, message):
    assert main(["verify", file, *arguments]) == 2
    assert message in capsys.readouterr().err


def test_one_of_something_is_said_in_the_singular(file, capsys):
    assert main(["verify", file, "--model", "tiny:llama", "--group", "b"]) == 0
    out, err = capsys.readouterr()
    assert "1 sequence of 1 group, 9 flat tokens" in err
    assert out.startswith("equal: 1 sequence, 9 flat tokens")


@pytest.mark.parametrize("model", ["tiny:llama", "tiny:qwen3_moe"])
def test_without_a_file_sequences_are_made_for_the_model(capsys, model):
    code, report, err = run_json(capsys, "--model", model)
    assert code == 0
    assert report["tree_tokens"] < report["flat_tokens"]
    # Every kind of change found a place.
    assert all(check["places"] for check in report["leak_checks"])
    assert "no FILE: " in report["notes"][0]
    assert report["notes"][0] in err
    assert [one["feature"] for one in report["reach"]] == (
        [] if model == "tiny:llama" else ["experts"]
    )
    assert all(one["tested"] for one in report["reach"])


@pytest.fixture
def windowed(tmp_path):
    """A saved model with a window of 40."""
    make_tiny_model("mistral", sliding_window=40).save_pretrained(tmp_path / "windowed")
    return str(tmp_path / "windowed")


def test_a_made_path_goes_beyond_the_window_unless_the_limit_keeps_it_from_that(windowed, capsys):
    code, report, _ = run_json(capsys, "--model", windowed)
    assert code == 0
    assert report["reach"] == [
        {"feature": "window", "size": 40, "layers": 4, "tested": True, "longest_path": 49}
    ]
    assert main(["verify", "--model", windowed]) == 0
    assert "window 40       tested: the longest path is 49 tokens\n" in capsys.readouterr().out
    limit = ["--limit-tokens", "200"]
    code, report, _ = run_json(capsys, "--model", windowed, *limit)
    assert code == 0
    assert report["flat_tokens"] <= 200
    assert report["reach"] == [
        {"feature": "window", "size": 40, "layers": 4, "tested": False, "longest_path": 31}
    ]
    assert main(["verify", "--model", windowed, *limit]) == 0
    assert "window 40       not tested: the longest path is 31 tokens\n" in capsys.readouterr().out


def test_rows_that_do_not_reach_beyond_the_window_are_told(file, windowed, capsys):
    code, report, _ = run_json(capsys, file, "--model", windowed)
    assert code == 0
    [reach] = report["reach"]
    assert (reach["tested"], reach["longest_path"]) == (False, 9)


@pytest.mark.parametrize(
    ("option", "value"),
    [("--group", "a"), ("--select", "a=b"), ("--expand", "per_step"), ("--tools", "none")],
)
def test_what_is_about_rows_is_refused_without_a_file(capsys, option, value):
    assert main(["verify", "--model", "tiny:llama", option, value]) == 2
    assert f"{option}" in capsys.readouterr().err


REFUSED = {
    "mamba": ({"num_hidden_layers": 2, "hidden_size": 16}, "convolves 4 neighbouring tokens"),
    "t5": ({"num_layers": 1, "d_model": 16, "d_ff": 16, "d_kv": 4}, "is an encoder-decoder"),
    "bloom": ({"n_layer": 2, "hidden_size": 16, "n_head": 2}, "ALiBi"),
}


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("with_file", [False, True])
def test_a_refused_model_is_told_at_set_up(kind, with_file, tmp_path, capsys, monkeypatch):
    values, reason = REFUSED[kind]
    config = AutoConfig.for_model(kind, vocab_size=64, **values)
    with torch.device("cpu"):
        AutoModel.from_config(config).save_pretrained(tmp_path / kind)
    for name in ("treetrain.cli.models.load_model", "treetrain.cli.verify.read_groups"):
        monkeypatch.setattr(name, lambda *arguments, **options: pytest.fail("too late"))
    capsys.readouterr()
    rows = tmp_path / "rows.jsonl"
    rows.write_text("no row at all")
    start = perf_counter()
    code = main(["verify", *([str(rows)] if with_file else []), "--model", str(tmp_path / kind)])
    seconds = perf_counter() - start
    out, err = capsys.readouterr()
    assert code == 2
    assert out == ""
    told = err.splitlines()
    assert told[0] == f"checking the model {tmp_path / kind}"
    assert len(told) == 2
    assert told[1].startswith("treetrain: ")
    assert reason in told[1]
    assert "train" in told[1].partition(reason)[2]
    print(f"{kind}: refused in {seconds:.2f} s")


@pytest.mark.parametrize("model", ["/nowhere/at/all", "tiny:lama", ""])
def test_a_wrong_name_is_told_before_rows_are_read(tmp_path, capsys, model):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("no row at all")
    assert main(["verify", str(rows), "--model", model]) == 2
    err = capsys.readouterr().err
    assert "model" in err
    assert "rows.jsonl" not in err


def test_a_missing_file_is_told_before_the_model_is_looked_at(tmp_path, capsys):
    assert main(["verify", str(tmp_path / "gone.jsonl"), "--model", "/nowhere/at/all"]) == 2
    assert capsys.readouterr().err == (
        f"treetrain: {tmp_path / 'gone.jsonl'}: No such file or directory\n"
    )


def test_a_model_is_required(file, capsys):
    with pytest.raises(SystemExit) as leave:
        main(["verify", file])
    assert leave.value.code == 2


def test_the_words_of_the_report_are_explained_below_it(file, capsys):
    assert main(["verify", file, "--model", "tiny:llama"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("float32, reduction path_mean")
    for word in ("step", "order", "own_target", "ancestor"):
        assert any(f"{word}: " in line for line in lines[-2:])


def test_dropout_that_the_check_runs_without_is_noted(tmp_path, capsys):
    make_tiny_model("llama", attention_dropout=0.1).save_pretrained(tmp_path)
    capsys.readouterr()
    assert main(["verify", "--model", str(tmp_path), "--limit-tokens", "60", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert any("attention_dropout=0.1" in note for note in told["notes"])


def test_a_tiny_model_of_several_parts_is_sent_to_its_text_part(capsys):
    assert main(["verify", "--model", "tiny:llama4", "--limit-tokens", "60"]) == 2
    assert "tiny:llama4_text" in capsys.readouterr().err


def test_a_tiny_model_may_derive_a_size_that_others_are_given(capsys):
    assert main(["verify", "--model", "tiny:falcon", "--limit-tokens", "60"]) == 0
    assert "equal" in capsys.readouterr().out
