from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from treetrain.cli import main as cli
from treetrain.errors import EquivalenceError, UnsupportedModelError


def replace_verb(
    monkeypatch: pytest.MonkeyPatch, outcome: BaseException | int, verb: str = "inspect"
) -> None:
    """Lets `treetrain inspect` end as told, whatever its own file does."""

    def run(args: argparse.Namespace) -> int:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    module = SimpleNamespace(add_arguments=lambda parser: None, run=run)
    monkeypatch.setitem(sys.modules, f"treetrain.cli.{verb}", module)
    monkeypatch.delenv("TREETRAIN_DEBUG", raising=False)


@pytest.mark.parametrize("code", [0, 1, 2])
def test_exit_code_of_the_verb_is_returned(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    replace_verb(monkeypatch, code)
    assert cli.main(["inspect"]) == code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValueError("data.jsonl:3: field 'a' must be a list, got int"), 2),
        (FileNotFoundError(2, "No such file or directory", "missing.jsonl"), 2),
        (UnsupportedModelError("model type 'bloom' has no hook"), 2),
        (EquivalenceError("gradient differs"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_error_becomes_one_line_and_an_exit_code(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
) -> None:
    replace_verb(monkeypatch, error)
    assert cli.main(["inspect"]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("treetrain: ")
    assert captured.err.count("\n") == 1


def test_message_of_several_lines_becomes_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replace_verb(monkeypatch, ValueError("first\n  second\n"))
    assert cli.main(["inspect"]) == 2
    assert capsys.readouterr().err == "treetrain: first second\n"


def test_missing_file_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replace_verb(monkeypatch, FileNotFoundError(2, "No such file or directory", "rows.jsonl"))
    assert cli.main(["inspect"]) == 2
    assert capsys.readouterr().err == "treetrain: rows.jsonl: No such file or directory\n"


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_verb(monkeypatch, ValueError("wrong"))
    with pytest.raises(ValueError, match="wrong"):
        cli.main(["inspect", "--debug"])
    monkeypatch.setenv("TREETRAIN_DEBUG", "1")
    with pytest.raises(ValueError, match="wrong"):
        cli.main(["inspect"])


def test_fault_of_the_program_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_verb(monkeypatch, IndexError("a fault"))
    with pytest.raises(IndexError):
        cli.main(["inspect"])


def test_a_package_that_is_missing_is_told_with_the_way_to_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replace_verb(monkeypatch, ModuleNotFoundError("No module named 'torch'", name="torch"))
    assert cli.main(["inspect"]) == 2
    assert capsys.readouterr().err == (
        "treetrain: No module named 'torch'; treetrain doctor says what is missing and how to get "
        "it\n"
    )
    replace_verb(monkeypatch, ModuleNotFoundError("No module", name="treetrain.nowhere"))
    with pytest.raises(ModuleNotFoundError):
        cli.main(["inspect"])


@pytest.mark.parametrize("words", [[], ["fly"], ["demo", "--no-such-option"]])
def test_wrong_usage_exits_with_two(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        cli.main(words)
    assert exit_info.value.code == 2
    assert "usage: treetrain" in capsys.readouterr().err


@pytest.mark.parametrize("verb", sorted(cli.VERBS))
def test_every_verb_has_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        cli.main([verb, "--help"])
    assert exit_info.value.code == 0
    assert f"usage: treetrain {verb}" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--help"], ["--version"], *([v, "--help"] for v in cli.VERBS)])
def test_help_loads_neither_torch_nor_transformers(words: list[str]) -> None:
    code = (
        "import sys\n"
        "from treetrain.cli.main import main\n"
        f"try: main({words!r})\n"
        "except SystemExit: pass\n"
        "print({'torch', 'transformers'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stderr.strip() == "set()"


def test_reader_that_leaves_early_is_no_error() -> None:
    code = (
        "import sys, types\n"
        "from treetrain.cli.main import main\n"
        "def run(args):\n"
        "    for _ in range(200_000): print('a line of output')\n"
        "    return 0\n"
        "verb = types.SimpleNamespace(add_arguments=lambda parser: None, run=run)\n"
        "sys.modules['treetrain.cli.inspect'] = verb\n"
        "sys.exit(main(['inspect']))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=120) == 141
        assert process.stderr.read() == b""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize(
    ("words", "streams", "code"),
    [
        ("schema", ">/dev/full", 2),
        ("train /nowhere", "2>/dev/full", 2),
        ("train /nowhere", "2>&-", 2),
        ("schema", ">&-", 0),
    ],
)
def test_what_cannot_be_said_changes_no_exit_code(words: str, streams: str, code: int) -> None:
    command = f"{sys.executable} -m treetrain.cli.main {words} {streams}"
    assert subprocess.run(command, shell=True, timeout=120).returncode == code


def test_a_closed_stream_leaves_its_place_to_no_file(tmp_path: Path) -> None:
    code = (
        "import os, sys\n"
        "from treetrain.cli.main import main\n"
        "try: main(['--version'])\n"
        "except SystemExit: pass\n"
        f"print(os.open({str(tmp_path / 'file')!r}, os.O_CREAT | os.O_WRONLY) > 2)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" <&- 2>&- >{tmp_path}/said', "sh", *command],
        timeout=120,
        check=True,
    )
    assert done.returncode == 0
    assert (tmp_path / "said").read_text().splitlines()[-1] == "True"
