from __future__ import annotations

import builtins
import json

import pytest
from tests.report.hostile import HOSTILE, assert_harmless

from treetrain.data.sample import Sample
from treetrain.report.run_folder import write_report

SAMPLES = [Sample([1, 2, 3, 4], group=HOSTILE), Sample([1, 2, 5], group=HOSTILE)]
STEP = {"flat_tokens": 7, "tree_tokens": 5, "seconds": 0.5, "flat_tokens_per_second": 14.0}


@pytest.fixture
def folder(tmp_path):
    lines = [{"step": step, "loss": 5 / step, **STEP} for step in range(1, 4)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "metrics.jsonl").write_text(text, "utf-8")
    (tmp_path / "config.yaml").write_text("steps: 3\n", "utf-8")
    return tmp_path


def test_a_run_becomes_a_page_with_its_curves_and_trees(folder) -> None:
    written = write_report(folder, SAMPLES)
    assert written.notes == ()
    read = assert_harmless(written.page.read_text(encoding="utf-8"))
    for text in ("last loss1.667", "steps: 3", "tokens per second", "prefix tree of group"):
        assert text in read.text


def test_without_samples_the_counts_are_those_written_before(folder) -> None:
    write_report(folder, SAMPLES)
    written = write_report(folder)
    text = assert_harmless(written.page.read_text(encoding="utf-8")).text
    assert "tokens, flat over tree 1.40" in text
    assert "prefix tree of" not in text


def test_plots_are_pictures(folder) -> None:
    pytest.importorskip("matplotlib")
    written = write_report(folder)
    assert [path.name for path in written.plots] == ["loss.png", "speed.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written.plots)


def test_without_matplotlib_the_page_is_written_and_the_way_out_is_said(
    folder, monkeypatch
) -> None:
    real = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    written = write_report(folder)
    assert written.page.exists()
    assert written.plots == ()
    assert "pip install 'treetrain[report]'" in written.notes[0]


def test_a_torn_last_line_is_left_out_and_counted(folder) -> None:
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "lo')
    written = write_report(folder)
    assert "metrics.jsonl:4: 1 line without its end left out" in written.notes[0]
    assert "1 line without its end" in written.page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("metrics.jsonl", "{}\n", "metrics.jsonl:1: field 'step' is required"),
        ("metrics.jsonl", "no\n", "metrics.jsonl:1: must be JSON"),
        ("check.json", "[]", "check.json: must be one JSON object, got list"),
        ("inspection.json", "{", "inspection.json: must be JSON, got an error"),
        ("inspection.json", "{}", "inspection.json: field 'sequences' is required"),
        ("check.json", '{"equal": "yes"}', "check.json: field 'equal' must be a valid boolean"),
        ("check.json", "[" * 100_000, "check.json: must be nested less deeply"),
        ("metrics.jsonl", '{"step": 1, "loss": "low"}\n', "jsonl:1: field 'loss' must be a valid"),
        ("metrics.jsonl", '{"step": 1, "flat_tokens": []}\n', "jsonl:1: field 'flat_tokens' must"),
        ("metrics.jsonl", '{"step": 1, "seconds": 1e999}\n', "jsonl:1: field 'seconds' must be"),
    ],
)
def test_a_broken_file_is_named(folder, name: str, text: str, message: str) -> None:
    (folder / name).write_text(text, "utf-8")
    with pytest.raises(ValueError, match=message):
        write_report(folder)


def test_files_that_are_no_text_are_named(folder):
    for name in ("config.yaml", "metrics.jsonl"):
        (folder / name).write_bytes(b"\xff\n")
        with pytest.raises(ValueError, match=f"{name}.*: must be UTF-8, got invalid start byte"):
            write_report(folder)
        (folder / name).unlink()


def test_a_folder_that_is_missing_is_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match=r"folder must be the folder of a run, got .*nowhere"):
        write_report(tmp_path / "nowhere")
