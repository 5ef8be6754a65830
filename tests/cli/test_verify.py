from __future__ import annotations

import json

import pytest

from treetrain.attention import reference
from treetrain.cli.main import main

PREFIX = [1, 2, 3, 4, 5, 6]
ROWS = [
    {"input_ids": [*PREFIX, 7, 8], "loss_mask": [0] * 6 + [1, 1], "group": "a"},
    {"input_ids": [*PREFIX, 9], "loss_mask": [0] * 6 + [1], "group": "a"},
    {"input_ids": [*PREFIX, 7, 8, 9], "loss_mask": [0] * 8 + [1], "group": "b"},
]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return str(path)


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
    assert said[0] == f"reading {file}"
    assert said[1].startswith("3 sequences of 2 groups, 24 flat tokens: one step over each alone")
    assert said[2] == "loading the model tiny:llama"
    stages = ["separate", "tree", "leaks", "float64 separate", "float64 tree"]
    assert [line.partition(":")[0] for line in said[3:]] == stages
    assert "reading" not in out


def test_limits_take_whole_sequences_and_say_what_was_cut(file, capsys):
    code, report, err = run_json(capsys, file, "--model", "tiny:llama", "--limit-tokens", "16")
    assert code == 0
    assert (report["sequences"], report["flat_tokens"]) == (2, 15)
    note = "2 of 3 sequences, 15 of 24 flat tokens, 1 of 2 groups"
    assert note in report["notes"][0]
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
    ],
)
def test_wrong_input_is_2_with_a_message(file, capsys, arguments, message):
    assert main(["verify", file, *arguments]) == 2
    assert message in capsys.readouterr().err


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
