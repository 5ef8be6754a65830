"""What every verb that reads rows says of them."""

from __future__ import annotations

import json

import pytest
import yaml

from treetrain.cli.main import main

WRONG = {"input_ids": [1, "2"]}
ROWS = [{"input_ids": [1, 2, 3, 4]}, WRONG, {"prompts": [1, 2], "responses": [3, 5]}, {"x": 1}]
KINDS = "rows: 1 row of token ids (input_ids); 1 per-step row (prompts, responses; verl's names)"
COUNT = "2 of 4 rows are wrong and were skipped"
FIRST = "skipped rows.jsonl:2: field 'input_ids[1]' must be a valid integer, got '2'"


@pytest.fixture
def file(write_rows):
    return write_rows(*ROWS, name="rows.jsonl")


VERBS = {
    "inspect": [],
    "verify": ["--model", "tiny:llama"],
    "plan": ["--model", "tiny:llama", "--capacity", "64"],
}


@pytest.mark.parametrize("verb", VERBS)
def test_kinds_are_said_and_wrong_rows_are_skipped_only_when_asked(verb, file, capsys):
    arguments = [verb, str(file), *VERBS[verb]]
    assert main(arguments) == 2
    assert "rows.jsonl:2: field 'input_ids[1]'" in capsys.readouterr().err
    assert main([*arguments, "--skip-bad-rows"]) == 0
    said = "".join(capsys.readouterr())
    for note in (KINDS, COUNT, FIRST):
        assert f"note: {note}\n" in said


def test_json_lists_all_that_was_skipped_and_accounts_for_every_row(file, capsys):
    file.write_text(file.read_text() + (json.dumps(WRONG) + "\n") * 20)
    assert main(["inspect", str(file), "--skip-bad-rows", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["skipped_rows"]) == 22
    assert found["rows_read"] + len(found["skipped_rows"]) == found["rows"] == 24
    for verb in ("verify", "plan"):
        assert main([verb, str(file), *VERBS[verb], "--skip-bad-rows", "--json"]) == 0
        notes = json.loads(capsys.readouterr().out)["notes"]
        assert sum(note.startswith("skipped rows.jsonl:") for note in notes) == 22


def test_training_says_kinds_and_skips_when_its_configuration_does(file, tmp_path, capsys):
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    values = {
        "model": {"scratch": {"type": "llama", "config": {**sizes, **heads}}},
        "tokenizer": "demo",
        "data": {"files": str(file)},
        "output": str(tmp_path / "out"),
        "reduction": "token_mean",
        "optimizer": {"lr": 1e-2},
        "steps": 1,
    }
    config = tmp_path / "run.yaml"
    config.write_text(yaml.safe_dump(values))
    assert main(["train", str(config)]) == 2
    assert "rows.jsonl:2: field 'input_ids[1]'" in capsys.readouterr().err
    assert main(["train", str(config), "--set", "data.skip_bad_rows=true"]) == 0
    said = capsys.readouterr().err
    for note in (KINDS, COUNT, FIRST):
        assert f"note: {file}: {note}\n" in said


def test_the_option_for_a_split_is_named(tmp_path, capsys):
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert main(["inspect", str(folder)]) == 2
    assert "give --split S" in capsys.readouterr().err
