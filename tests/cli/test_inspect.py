from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from treetrain.cli.main import main

KEYS = {
    "sequences",
    "trees",
    "flat_tokens",
    "tree_tokens",
    "por",
    "token_reduction",
    "attention_pairs",
    "nodes",
    "leaves",
    "runs",
    "depth_max",
    "targets",
    "pays",
}


@pytest.fixture
def talks(write_rows: Any) -> Path:
    rows = [
        {
            "kind": kind,
            "group": kind,
            "messages": [
                {"role": "user", "content": "water bench 3"},
                {"role": "assistant", "content": answer, "reasoning_content": "so"},
                {"role": "user", "content": "and bench 4"},
                {"role": "assistant", "content": "yes", "reasoning_content": "so"},
            ],
        }
        for kind in ("one", "two")
        for answer in ("done", "not yet")
    ]
    return write_rows(*rows, name="talks.jsonl")


def inspect_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["inspect", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_one_group_is_said_in_the_singular(ids: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(ids)]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first == f"{ids}: 3 rows, 3 sequences in 1 group"


def test_json_has_the_promised_keys_and_the_worked_example(ids, capsys):
    found = inspect_json(capsys, str(ids))
    assert found.keys() >= KEYS
    assert found["attention_pairs"] == {"flat": 58, "tree": 37, "ratio": 58 / 37}
    assert {key: found[key] for key in KEYS - {"attention_pairs", "por", "token_reduction"}} == {
        "sequences": 3,
        "trees": 1,
        "flat_tokens": 17,
        "tree_tokens": 9,
        "nodes": 4,
        "leaves": 2,
        "runs": 2,
        "depth_max": 7,
        "targets": 8,
        "pays": True,
    }
    assert found["por"] == 1 - 9 / 17
    assert found["token_reduction"] == 17 / 9
    assert found["notes"] == [
        "rows: 3 rows of token ids (input_ids)",
        "3 rows have no mask: every token is trained",
    ]


def test_groups_are_counted_one_by_one(talks, capsys):
    found = inspect_json(capsys, str(talks), "--tokenizer", "demo", "--expand", "per_step")
    assert [count["group"] for count in found["groups"]] == ["one", "two"]
    assert found["sequences"] == 8
    assert sum(count["flat_tokens"] for count in found["groups"]) == found["flat_tokens"]
    assert found["groups"][0]["tree_tokens"] == found["groups"][1]["tree_tokens"]


def test_where_paths_part_is_said_in_text(talks, capsys):
    found = inspect_json(capsys, str(talks), "--tokenizer", "demo", "--expand", "per_step")
    texts = [parting["text"] for parting in found["partings"]]
    assert any(text["branch"].startswith("<think>") for text in texts)
    assert all(text["before"].endswith("<|assistant|>\n") for text in texts[:1])
    main(["inspect", str(talks), "--tokenizer", "demo", "--expand", "per_step"])
    assert "<think>" in capsys.readouterr().out


def test_rows_can_be_selected_and_the_template_replaced(talks, tmp_path, capsys):
    template = tmp_path / "plain.jinja"
    template.write_text(
        "{% for m in messages %}<|{{ m.role }}|>>{{ m.content }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>>{% endif %}"
    )
    found = inspect_json(
        capsys, str(talks), "--tokenizer", "demo", "--select", "kind=two",
        "--chat-template", str(template),
    )  # fmt: skip
    assert found["sequences"] == 2
    assert "2 of 4 rows were not selected" in found["notes"]
    assert "<|assistant|>>" in found["partings"][0]["text"]["before"]


def test_the_shape_moves_the_bound(ids, capsys):
    attention = inspect_json(capsys, str(ids), "--shape", "0,1,1,1")
    assert attention["flop_bound"] == 58 / 37
    assert attention["shape"]["layers"] == 1


def test_columns_of_ratios_are_named_as_ratios(ids, capsys):
    main(["inspect", str(ids)])
    lines = capsys.readouterr().out.splitlines()
    place = next(n for n, line in enumerate(lines) if line.startswith("group "))
    assert "floating-point work of separate sequences over those of the tree" in lines[place - 1]
    names = ["reduction", "pair ratio", "FLOP bound", "targets"]
    ends = [lines[place].index(name) + len(name) for name in names]
    starts = [lines[place].index("tree tokens") + len("tree tokens"), *ends[:-1]]
    row = lines[place + 1]
    values = [row[start:end].strip() for start, end in zip(starts, ends, strict=True)]
    bound = inspect_json(capsys, str(ids))["flop_bound"]
    assert values == [f"{17 / 9:.2f}", f"{58 / 37:.2f}", f"{bound:.2f}", "8"]


def test_text_says_whether_it_pays_and_why(write_rows, ids, capsys):
    main(["inspect", str(ids)])
    assert capsys.readouterr().out.strip().splitlines()[-1].startswith("pays: ")
    rows = [[1] * 5 + list(range(100 * n + 2, 100 * n + 52)) for n in range(2)]
    little = write_rows(*({"input_ids": row} for row in rows), name="little.jsonl")
    main(["inspect", str(little)])
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert last.startswith("does not pay: ")
    assert "token reduction 1.05" in last


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.jsonl"], "missing.jsonl"),
        (["{talks}"], "rows of text need a tokenizer; give --tokenizer T"),
        (["{ids}", "--shape", "1,2"], "--shape must be four integers"),
        (["missing.jsonl", "--html", "no/p.html"], "--html must lie in a folder that exists"),
        (["{ids}", "--select", "kind"], "--select must be NAME=VALUE, got 'kind'"),
        (["{ids}", "--tokenizer", "no/such/tokenizer"], "tokenizer must be a folder"),
    ],
)
def test_wrong_use_ends_with_code_two_and_one_line(
    arguments, message, ids, talks, capsys, monkeypatch
):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    words = [word.format(ids=ids, talks=talks) for word in arguments]
    assert main(["inspect", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    *progress, error = captured.err.strip().splitlines()
    assert message in error
    assert all(line.startswith("reading ") for line in progress)


def test_an_error_of_the_reader_names_the_option_and_not_the_argument(talks, tmp_path, capsys):
    template = tmp_path / "failing.jinja"
    template.write_text("{{ raise_exception('never') }}")
    assert main(["inspect", str(talks)]) == 2
    told = capsys.readouterr().err
    assert "--tokenizer T" in told
    assert "tokenizer=" not in told
    words = ["--tokenizer", "demo", "--chat-template", str(template)]
    assert main(["inspect", str(talks), *words]) == 2
    assert "give another --chat-template" in capsys.readouterr().err


def test_rows_of_ids_need_neither_torch_nor_transformers(ids):
    program = (
        "import sys; from treetrain.cli.main import main; code = main(['inspect', sys.argv[1]]); "
        "loaded = {'torch', 'transformers'} & set(sys.modules); "
        "sys.exit(str(loaded) if loaded else code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(ids)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_drift_of_steps_is_said_in_text_and_in_json(talks, capsys):
    words = [str(talks), "--tokenizer", "demo", "--expand", "per_step"]
    drift = inspect_json(capsys, *words)["drift"]
    assert drift["steps"]["compared"] == 4
    assert drift["steps"]["drifts"] == drift["steps"]["re_rendered"] == 4
    assert drift["steps"]["not_kept"] == 0
    assert drift["steps"]["found"][0]["text"]["recorded"].startswith("<think>")
    main(["inspect", *words])
    said = capsys.readouterr().out
    assert "steps: 4 of 4 do not begin with the step before them" in said
    kept, now = drift["steps"]["kept_tree_tokens"], drift["steps"]["tree_tokens"]
    assert f"{kept:,} tree tokens instead of {now:,}" in said


def test_tree_tokens_of_steps_are_those_of_the_inspection(talks, capsys):
    found = inspect_json(capsys, str(talks), "--tokenizer", "demo", "--expand", "per_step")
    assert found["drift"]["steps"]["tree_tokens"] == found["tree_tokens"]


def test_nothing_is_said_of_drift_where_nothing_can_be_compared(ids, talks, capsys):
    drift = inspect_json(capsys, str(ids))["drift"]
    assert drift["answers"]["compared"] == drift["steps"]["compared"] == 0
    main(["inspect", str(talks), "--tokenizer", "demo"])
    assert "\ndrift (" not in capsys.readouterr().out


def test_html_is_a_page_with_counts_and_drawings(
    ids: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    assert main(["inspect", str(ids), "--html", str(page)]) == 0
    assert "17" in capsys.readouterr().out
    text = page.read_text(encoding="utf-8")
    assert "<h1><bdi>ids.jsonl</bdi></h1>" in text
    assert 'aria-label="prefix tree of samples without a group"' in text
    assert "tokens, flat over tree 1.89" in text
    assert "<h2>Run</h2>" not in text


def test_html_and_json_go_together(ids, tmp_path, capsys):
    assert inspect_json(capsys, str(ids), "--html", str(tmp_path / "p.html"))["flat_tokens"] == 17
    assert (tmp_path / "p.html").exists()


def test_a_page_that_cannot_be_written_is_wrong_input(ids, tmp_path, capsys):
    assert main(["inspect", str(ids), "--html", str(tmp_path / "no" / "p.html")]) == 2
    assert "no/" in capsys.readouterr().err


def test_a_page_that_cannot_be_written_is_told_before_anything_is_read(tmp_path, capsys):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"input_ids": [1, 2, 3]}\n')
    link = tmp_path / "page.html"
    link.symlink_to(rows)
    tools = tmp_path / "tools.json"  # it is read beside the rows
    tools.write_text("[]")
    for page, message in (
        (rows, "--html must be a new file or an earlier page"),
        (link, "--html must be a new file or an earlier page"),
        (tools, "--html must be a new file or an earlier page"),
        (tmp_path, "--html must be a file"),
        (Path("/dev/null"), "--html must be a file"),
        (tmp_path / "nowhere" / "page.html", "--html must lie in a folder that exists"),
    ):
        assert main(["inspect", str(rows), "--html", str(page)]) == 2
        err = capsys.readouterr().err
        assert message in err
        assert "reading" not in err
    assert rows.read_text() == '{"input_ids": [1, 2, 3]}\n'
    assert tools.read_text() == "[]"


def test_an_earlier_page_is_written_anew(ids, tmp_path):
    page = tmp_path / "page.html"
    page.write_text("")
    for _ in range(2):
        assert main(["inspect", str(ids), "--html", str(page)]) == 0
