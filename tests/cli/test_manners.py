"""What every verb does alike: one object with --json, exit codes, and a word for a typing error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from tests.training.breaking import break_attention

from treetrain.cli.main import VERBS, main

#: Words of a run that goes well; demo, which takes longer, is in test_demo.py.
GOOD = {
    "inspect": ["rows.jsonl"],
    "verify": ["rows.jsonl", "--model", "tiny:llama"],
    "plan": ["rows.jsonl", "--model", "tiny:llama", "--capacity", "4"],
    "convert": ["rows.jsonl", "out.tree.jsonl"],
    "train": ["run.yaml"],
    "schema": [],
    "doctor": [],
}
WRONG = {
    "inspect": ["missing.jsonl"],
    "verify": ["rows.jsonl", "--model", "missing"],
    "plan": ["rows.jsonl", "--model", "tiny:llama"],
    "convert": ["rows.jsonl", "rows.jsonl"],
    "train": ["run.yaml", "--set", "steps=none"],
    "demo": ["--out", "rows.jsonl"],
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rows = [[1, 2, 3, 4, 5], [1, 2, 3, 6], [1, 2, 7, 8]]
    text = "".join(json.dumps({"input_ids": row}) + "\n" for row in rows)
    (tmp_path / "rows.jsonl").write_text(text, "utf-8")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1}
    values = {
        "model": {"scratch": {"type": "llama", "config": sizes}},
        "tokenizer": "demo",
        "data": {"files": "rows.jsonl"},
        "output": "out",
        "reduction": "token_mean",
        "optimizer": {"lr": 0.01},
        "steps": 2,
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(values))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TREETRAIN_DEBUG", raising=False)
    return tmp_path


@pytest.mark.parametrize("verb", GOOD)
def test_json_is_one_object_and_the_exit_code_is_0(verb, capsys):
    assert main([verb, *GOOD[verb], "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    assert found


def test_json_of_a_run_has_its_first_and_last_step_and_nothing_where_none_was_left(folder, capsys):
    assert main(["train", "run.yaml", "--json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    lines = [json.loads(line) for line in (folder / "out" / "metrics.jsonl").open()]
    assert found["output"] == "out"
    assert found["steps"] == 2
    for step, line in ((found["first"], lines[0]), (found["last"], lines[1])):
        assert {key: step[key] for key in line} == line
    assert "rows.jsonl: rows: 3 rows of token ids (input_ids)" in found["notes"]
    assert "trained 2 steps" in err
    assert main(["train", "run.yaml", "--resume", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["steps"], found["first"], found["last"]) == (0, None, None)


@pytest.mark.parametrize("verb", WRONG)
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_wrong_input_is_2_with_one_line_on_stderr_and_none_on_stdout(verb, options, capsys):
    assert main([verb, *WRONG[verb], *options]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1].startswith("treetrain: ")
    assert "Traceback" not in err


def test_every_verb_is_tried() -> None:
    assert {*GOOD, "demo"} == {*WRONG, "schema", "doctor"} == VERBS.keys()


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_difference_in_the_first_check_is_1_with_a_line_for_each_figure(
    options, monkeypatch, capsys
):
    break_attention(monkeypatch)
    assert main(["train", "run.yaml", *options]) == 1
    out, err = capsys.readouterr()
    assert "{" not in out
    assert "\ntreetrain: tree training must equal separate training, got:\n  logprobs: " in err
    assert "\n  worst parameter " in err


@pytest.mark.parametrize("verb", VERBS)
def test_an_option_that_is_written_wrong_is_2_with_the_one_that_was_meant(verb, capsys):
    with pytest.raises(SystemExit) as exit_info:
        main([verb, "--josn"])
    assert exit_info.value.code == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert message == f"treetrain {verb}: error: unknown option --josn; did you mean '--json'?"


def test_an_option_that_is_like_none_is_2_without_a_guess(capsys):
    with pytest.raises(SystemExit):
        main(["doctor", "--xyzzy"])
    assert capsys.readouterr().err.endswith("unknown option --xyzzy\n")


def test_beginnings_of_options_values_and_what_follows_two_dashes_are_no_errors(folder, capsys):
    assert main(["inspect", "rows.jsonl", "--sh=10,1,1,4", "--js"]) == 0
    (folder / "--rows.jsonl").write_bytes((folder / "rows.jsonl").read_bytes())
    assert main(["inspect", "--json", "--", "--rows.jsonl"]) == 0
    assert main(["train", "run.yaml", "--set", "output=a--b"]) == 0


@pytest.mark.parametrize(
    ("word", "meant"), [("trian", "train"), ("insepct", "inspect"), ("Verify", "verify")]
)
def test_a_verb_that_is_written_wrong_is_2_with_the_one_that_was_meant(word, meant, capsys):
    with pytest.raises(SystemExit) as exit_info:
        main([word, "rows.jsonl"])
    assert exit_info.value.code == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith("treetrain: error: VERB must be one of inspect, ")
    assert message.endswith(f"got '{word}'; did you mean '{meant}'?")


def test_the_bare_command_shows_its_help_on_stderr(capsys):
    with pytest.raises(SystemExit) as exit_info:
        main([])
    assert exit_info.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "examples:\n  treetrain demo\n" in err
