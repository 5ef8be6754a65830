from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from tests.demo.short_plan import SHORT_PLAN

from treetrain.cli.examples import EXAMPLES
from treetrain.cli.main import VERBS, main
from treetrain.demo.plans import PLANS
from treetrain.demo.stages import generate

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate(PLANS["small"], tmp_path_factory.mktemp("rows"), seed=0)


@pytest.fixture
def folder(tmp_path: Path, rows: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone after a demo; another demo is a short one, and leaves the rows alone."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "runs" / "demo").mkdir(parents=True)
    (tmp_path / "runs" / "demo" / rows.name).write_bytes(rows.read_bytes())
    monkeypatch.setitem(PLANS, "small", SHORT_PLAN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_line(line: str) -> int:
    """What a shell does with an example, but for what it would print into a file."""
    words = shlex.split(line.partition(" > ")[0].replace("\\\n", " "))
    assert words.pop(0) == "treetrain"
    return main(words)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("verb", VERBS)
def test_examples_of_the_help_work(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    for line in EXAMPLES[verb]:
        assert line.split()[1] == verb
        assert run_line(line) == 0, capsys.readouterr().err
        out = capsys.readouterr().out
        if "--json" in line:
            assert isinstance(json.loads(out), dict)


@pytest.mark.parametrize("verb", VERBS)
def test_help_shows_the_examples(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    shown = capsys.readouterr().out
    assert EXAMPLES[verb]
    assert all(f"\n  {line}" in shown for line in EXAMPLES[verb])


def test_help_of_the_command_shows_examples_of_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    assert EXAMPLES[""]
    for line in EXAMPLES[""]:
        assert f"\n  {line}\n" in shown
        assert line in EXAMPLES[line.split()[1]]
