from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest

from treetrain.cli.main import main
from treetrain.data.rows import read_samples
from treetrain.testing.trees import worked_example

CALL = {"function": {"name": "water", "arguments": "{}"}}


@pytest.fixture
def talk(tmp_path: Path) -> Path:
    path = tmp_path / "talk.jsonl"
    calling = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    path.write_text(json.dumps({"messages": [{"role": "user", "content": "a"}, calling]}), "utf-8")
    return path


def test_trees_are_written_and_counted(ids, capsys):
    out = ids.with_name("ids.tree.jsonl")
    assert main(["convert", str(ids), str(out)]) == 0
    size = out.stat().st_size
    first, *notes, last = capsys.readouterr().out.splitlines()
    assert first == f"{ids}: 3 rows"
    assert "  note: 3 rows have no mask: every token is trained" in notes
    assert last == f"{out}: 3 sequences in 1 tree, 9 tree tokens of 17 flat; {size:,} bytes"
    assert [sample.source for sample in read_samples(out)] == [f"ids.jsonl:{n}" for n in (1, 2, 3)]


def test_rows_of_token_ids_say_what_they_lose(ids, capsys):
    tree, flat = ids.with_name("ids.tree.jsonl"), ids.with_name("flat.jsonl")
    main(["convert", str(ids), str(tree)])
    capsys.readouterr()
    assert main(["convert", str(tree), str(flat), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["sequences"], found["trees"], found["sources_left_out"]) == (3, None, 3)
    assert [sample.tokens.tolist() for sample in read_samples(flat)] == worked_example()


def test_an_inspection_of_trees_is_that_of_the_rows(ids, capsys):
    out = ids.with_name("ids.tree.jsonl")
    main(["convert", str(ids), str(out)])
    capsys.readouterr()
    counts = []
    for path in (ids, out):
        main(["inspect", str(path), "--json"])
        found = json.loads(capsys.readouterr().out)
        counts.append({name: found[name] for name in found if name not in ("file", "notes")})
    assert counts[0] == counts[1]


def test_conversations_become_one_sequence_per_step(tmp_path, capsys):
    answer = {"role": "assistant", "content": "yes", "reasoning_content": "so"}
    path, out = tmp_path / "talk.jsonl", tmp_path / "talk.tree.jsonl"
    row = {"messages": [{"role": "user", "content": "a"}, answer] * 2, "advantage": 0.5}
    path.write_text(json.dumps(row), "utf-8")
    words = ["--tokenizer", "demo", "--expand", "per_step"]
    assert main(["convert", str(path), str(out), *words]) == 0
    found = read_samples(out)
    assert [one.source for one in found] == [f"talk.jsonl:1: messages[{n}]" for n in (1, 3)]
    assert {one.trajectory for one in found} == {"talk.jsonl:1"}
    assert {one.advantage for one in found} == {0.5}


def test_a_link_that_leads_nowhere_is_replaced_only_when_asked_for(ids, capsys):
    out = ids.with_name("link.jsonl")
    out.symlink_to("nowhere/rows.jsonl")
    assert main(["convert", str(ids), str(out)]) == 2
    assert "OUT must not exist" in capsys.readouterr().err
    assert out.is_symlink()


def test_a_file_is_replaced_only_when_asked_for(ids, capsys):
    out = ids.with_name("out.jsonl")
    out.write_text("precious")
    assert main(["convert", str(ids), str(out)]) == 2
    assert "OUT must not exist" in capsys.readouterr().err
    assert out.read_text() == "precious"
    assert main(["convert", str(ids), str(out), "--overwrite"]) == 0
    assert len(read_samples(out)) == 3


def test_a_file_may_be_converted_in_its_place(ids):
    assert main(["convert", str(ids), str(ids), "--overwrite"]) == 0
    assert [sample.tokens.tolist() for sample in read_samples(ids)] == worked_example()


def test_nothing_is_left_where_writing_fails(tmp_path, write_rows, capsys):
    path = write_rows({"input_ids": [1], "keys": [1]}, {"input_ids": [1]}, name="ids.jsonl")
    out = tmp_path / "out.tree.jsonl"
    out.write_text("precious")
    assert main(["convert", str(path), str(out), "--overwrite"]) == 2
    assert "must all have keys or none" in capsys.readouterr().err
    assert out.read_text() == "precious"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["ids.jsonl", "out.tree.jsonl"]


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("out.parquet", "OUT must end in .tree.jsonl or .jsonl"),
        ("missing/out.jsonl", "OUT must lie in a folder that exists"),
        ("folder.jsonl", "OUT must be a file"),
    ],
)
def test_a_wrong_place_is_refused_before_anything_is_read(tmp_path, capsys, out, message):
    (tmp_path / "folder.jsonl").mkdir()
    assert main(["convert", "nothing.jsonl", str(tmp_path / out)]) == 2
    assert message in capsys.readouterr().err


def test_calls_that_the_template_leaves_out_are_refused_unless_counted(talk, tmp_path, capsys):
    template = tmp_path / "plain.jinja"
    template.write_text(
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    out = tmp_path / "out.tree.jsonl"
    words = ["--tokenizer", "demo", "--chat-template", str(template)]
    assert main(["convert", str(talk), str(out), *words]) == 2
    assert "--unrendered count" in capsys.readouterr().err
    assert not out.exists()
    assert main(["convert", str(talk), str(out), *words, "--unrendered", "count"]) == 0
    assert "tool calls that the chat template does not write" in capsys.readouterr().out


def test_a_full_disk_is_told_by_the_file_and_leaves_none(tmp_path, capsys):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"input_ids": [1, 2, n]}) + "\n" for n in range(2000)))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (9000, before[1]))
    try:
        codes = [
            main(["convert", str(rows), str(tmp_path / "out.tree.jsonl")]),
            main(["inspect", str(rows), "--html", str(tmp_path / "out.html")]),
        ]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert codes == [2, 2]
    err = capsys.readouterr().err
    assert f"treetrain: {tmp_path}/out.tree.jsonl: File too large\n" in err
    assert f"treetrain: {tmp_path}/out.html: File too large\n" in err
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]
