from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from tests.docs.blocks import Block, find_difference, read_blocks, said_prints

from treetrain.cli.main import main
from treetrain.data.rows import read_samples
from treetrain.demo.models import make_small_model
from treetrain.demo.plans import PLANS
from treetrain.demo.stages import generate
from treetrain.training.config_file import load_config

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Rollouts of SmolLM2 need its package. A demo takes minutes: what it does is tested with a
# short plan in tests/cli/test_demo.py.
NOT_RUN = (
    "treetrain demo",
    "treetrain inspect smollm2-rollouts/rollouts.jsonl --tokenizer smollm2",
)


def blocks_of(*kinds: str) -> list:
    return [
        pytest.param(path, block, id=f"{path.relative_to(ROOT)}:{block.line}")
        for path in PAGES
        for block in read_blocks(path)
        if block.kind in kinds
    ]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate(PLANS["small"], tmp_path_factory.mktemp("rows"), seed=0)


@pytest.fixture
def folder(tmp_path: Path, rows: Path) -> Path:
    """A folder in which the demo has written its rows, and the examples lie."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "runs" / "demo").mkdir(parents=True)
    (tmp_path / "runs" / "demo" / rows.name).symlink_to(rows)
    return tmp_path


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_block_is_of_a_kind_that_is_run(path: Path) -> None:
    known = {"python", "console", "yaml", "json", "sh"}
    for block in read_blocks(path):
        drawing = block.kind == "" and "$ treetrain" not in block.text
        assert drawing or block.kind in known, f"{path.name}:{block.line}"


@pytest.mark.parametrize(
    "path",
    [path for path in PAGES if any(block.kind == "python" for block in read_blocks(path))],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_python_runs_and_prints_what_it_says(
    path: Path, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    names: dict[str, object] = {}
    for block in (block for block in read_blocks(path) if block.kind == "python"):
        place = f"{path.name}:{block.line}"
        exec(compile(block.text, place, "exec"), names)
        assert capsys.readouterr().out.splitlines() == said_prints(block.text), place


@pytest.mark.parametrize(("path", "block"), blocks_of("console"))
def test_commands_print_what_they_say(
    path: Path,
    block: Block,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(folder)
    command, _, said = block.text.replace("\\\n", " ").partition("\n")
    words = shlex.split(command.removeprefix("$ "))
    assert words[0] == "treetrain"
    if command.removeprefix("$ ") in NOT_RUN:
        return
    assert main(words[1:]) == 0
    assert find_difference(said, capsys.readouterr().out) is None


@pytest.mark.parametrize(("path", "block"), blocks_of("yaml"))
def test_configurations_are_read(path: Path, block: Block, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(block.text, encoding="utf-8")
    load_config(tmp_path / "run.yaml")


@pytest.mark.parametrize(("path", "block"), blocks_of("json"))
def test_rows_are_read(path: Path, block: Block, tmp_path: Path) -> None:
    for line in block.text.splitlines():
        json.loads(line)
    (tmp_path / "rows.jsonl").write_text(block.text, encoding="utf-8")
    _, tokenizer = make_small_model(0)
    samples = read_samples(tmp_path / "rows.jsonl", tokenizer=tokenizer, unrendered="count")
    assert all(sample.weights.any() for sample in samples)


@pytest.mark.parametrize(("path", "block"), blocks_of("sh"))
def test_shell_lines_are_make_targets_or_programs_of_the_environment(
    path: Path, block: Block
) -> None:
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text(), re.M))
    for line in block.text.splitlines():
        words = shlex.split(line, comments=True)
        target = words[1] if words[:1] == ["make"] else None
        assert target in targets or words[0].startswith(".venv/bin/"), line


def test_a_line_that_was_not_printed_is_a_difference() -> None:
    assert find_difference("a 1\n...\nb 2", "a 1\nx\ny\nb 2") is None
    assert find_difference("a 1\nb 2", "a 1\nb 2\n\n") is None
    assert find_difference("a 1.00, 3e-07", "a 1.01, 9e-06") is None
    assert find_difference("a 1.00", "a 1.10") is not None
    assert find_difference("a 100", "a 101") is not None
    assert find_difference("a 1\nb 2", "a 1\nx\nb 2") is not None
    assert find_difference("a 1", "a 1\nb 2") is not None
    assert find_difference("a ... 3", "a one 2 three 3") is None
