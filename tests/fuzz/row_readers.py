"""The readers of rows: every kind of row as JSON lines, every container with rows of some kinds."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
from tests.fuzz.alteration import write_json
from tests.fuzz.forms import ARRAY, LINES, OBJECT, Form
from tests.fuzz.promise import Outcome, check_command, check_rows
from tests.fuzz.rows import ROWS, Rows

from treetrain.cli import tokenizers
from treetrain.data.columnar import PARQUET
from treetrain.data.json_stream import MARK, SPACE
from treetrain.data.rows import read_samples
from treetrain.data.tree_file import is_tree_file, tree_lines
from treetrain.tree.build import build_prefix_tree

#: Arguments as objects, and a message refused: two habits that the shipped template lacks.
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }} "
    "{{ c.function.arguments | tojson }}</call>{% endfor %}<|im_end|>\n"
    "{% if m.role == 'tool' and loop.first %}{{ raise_exception('no call') }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
#: How a file is read: arguments, and the words of the command that mean the same.
READINGS: tuple[tuple[dict[str, Any], tuple[str, ...]], ...] = (
    ({}, ()),
    ({"expand": "per_step"}, ("--expand", "per_step")),
    ({"chat_template": TEMPLATE}, ("--chat-template", "TEMPLATE")),
    (
        {"chat_template": TEMPLATE, "expand": "per_step"},
        ("--chat-template", "TEMPLATE", "--expand", "per_step"),
    ),
    ({"select": {"group": "g"}}, ("--select", "group=g")),
)


@dataclass(frozen=True)
class Reader:
    """A reader, and what it is fuzzed with.

    Attributes:
        name: what it reads, for the log.
        seeds: files that it accepts.
        form: how they are written; None: only bytes are altered.
        others: values of which parts are borrowed.
        check: puts a file into an empty folder, reads it and finds faults; None where the file
            could not be made.
    """

    name: str
    seeds: tuple[bytes, ...] = field(repr=False)
    form: Form | None = field(repr=False)
    others: Sequence[Any] = field(repr=False)
    check: Callable[[bytes, Path], Outcome | None] = field(repr=False)


def row_readers() -> Iterator[Reader]:
    """Lists the readers of rows.

    Yields:
        The readers.
    """
    every = [row for rows in ROWS.values() for row in rows]
    for kind, rows in ROWS.items():
        seeds = [_lines([row]) for row in rows] + [_lines(rows)]
        yield Reader(f"JSON lines: {kind}", tuple(seeds), LINES, every, _check_lines)
    arrays = tuple(json.dumps(rows).encode() for rows in ROWS.values())
    yield Reader("JSON array", arrays, ARRAY, every, _check_array)
    objects = tuple(json.dumps(row, indent=1).encode() for row in every)
    yield Reader("JSON object (.traj)", objects, OBJECT, every, _check_object)
    trees = tuple(_tree_file(seed) for seed in (*every_sample_file(), b""))
    yield Reader("tree file", trees, LINES, [], _check_tree_file)
    lines = tuple(_lines(rows) for rows in _COLUMNAR)
    yield Reader("parquet: rows", lines, LINES, every, _in_columns(_check_parquet, _parquet))
    parquet = tuple(_parquet(rows) for rows in _COLUMNAR)
    yield Reader("parquet: bytes", parquet, None, [], _check_parquet)
    yield Reader("datasets: rows", lines, LINES, every, _in_columns(_check_arrow, _arrow))
    arrow = tuple(_arrow(rows) for rows in _COLUMNAR)
    yield Reader("datasets: arrow bytes", arrow, None, [], _check_arrow)
    yield Reader("datasets: state.json", (_STATE,), OBJECT, [], _check_state)
    yield Reader("datasets: dataset_dict.json", (_SPLITS,), OBJECT, [], _check_splits)
    tools = (b"[]", b'[{"type": "function", "function": {"name": "f", "parameters": {}}}]')
    yield Reader("tools.json", tools, OBJECT, every, _check_tools)


@cache
def tokenizer() -> Any:
    """The shipped tokenizer."""
    return tokenizers.load_tokenizer("demo")


def every_sample_file() -> list[bytes]:
    """Rows of ids and steps, of which tree files are made."""
    return [_lines(ROWS["token ids"][:2]), _lines(ROWS["steps of a policy"])]


_COLUMNAR: tuple[Rows, ...] = (
    ROWS["token ids"][:1],
    ROWS["token ids"][1:3],
    ROWS["steps of a policy"][3:],
    ROWS["prompts"][:1],
    ROWS["messages"][1:],
    ROWS["ATIF"][:1],
)
_FILE = "data-00000-of-00001.arrow"
_STATE = json.dumps({"_data_files": [{"filename": _FILE}], "_split": "train"}).encode()
_SPLITS = json.dumps({"splits": ["train"]}).encode()


def _lines(rows: Sequence[Any]) -> bytes:
    return "".join(write_json(row) + "\n" for row in rows).encode()


def _parquet(rows: Sequence[Any]) -> bytes:
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), sink)
    return sink.getvalue().to_pybytes()


def _arrow(rows: Sequence[Any]) -> bytes:
    table = pyarrow.Table.from_pylist(list(rows))
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def _tree_file(lines: bytes) -> bytes:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.jsonl"
        path.write_bytes(lines or _lines([{"input_ids": [1, 2, 3]}, {"input_ids": [1, 2, 4, 5]}]))
        samples = read_samples(path)
    return "".join(line for line, _ in tree_lines(samples, build_prefix_tree)).encode()


def _check(
    path: Path,
    data: bytes,
    *,
    names: Sequence[str],
    rows: int | None = None,
    lines: Sequence[bytes] | None = None,
) -> Outcome:
    arguments, words = READINGS[zlib.crc32(data) % len(READINGS)]
    if "select" in arguments and b'"group"' not in data:
        arguments, words = READINGS[0]
    reading = {"tokenizer": tokenizer(), "unrendered": "count", **arguments}
    outcome = check_rows(path, reading, names=names, rows=rows, lines=lines)
    if zlib.crc32(data) >> 8 & 3:
        return outcome
    template = path.with_name("template.jinja")
    template.write_text(TEMPLATE)
    given = [str(template) if word == "TEMPLATE" else word for word in words]
    # The command would load the tokenizer anew each time.
    load, tokenizers.load_tokenizer = tokenizers.load_tokenizer, lambda name: tokenizer()
    try:
        check_command(
            path,
            ["--tokenizer", "demo", "--skip-bad-rows", *given],
            names,
            outcome.told is not None,
        )
    finally:
        tokenizers.load_tokenizer = load
    return outcome


def _check_lines(data: bytes, folder: Path) -> Outcome:
    path = folder / "data.jsonl"
    path.write_bytes(data)
    lines = data.split(b"\n")
    start = data.removeprefix(MARK).lstrip(SPACE)
    if start.startswith(b"[") or data.startswith(PARQUET) or is_tree_file(path):
        return _check(path, data, names=(path.name,))
    rows = sum(bool(line.strip()) for line in data.removeprefix(MARK).split(b"\n"))
    # Alone, a line that begins so would be an array.
    array = any(line.lstrip(SPACE).startswith(b"[") for line in lines)
    return _check(path, data, names=(path.name,), rows=rows, lines=None if array else lines)


def _check_array(data: bytes, folder: Path) -> Outcome:
    path = folder / "data.json"
    path.write_bytes(data)
    found = _loaded(data)
    rows = len(found) if isinstance(found, list) else None
    return _check(path, data, names=(path.name,), rows=rows)


def _check_object(data: bytes, folder: Path) -> Outcome:
    path = folder / "run.traj"
    path.write_bytes(data)
    rows = 1 if isinstance(_loaded(data), dict) and not is_tree_file(path) else None
    return _check(path, data, names=(path.name,), rows=rows)


def _check_tree_file(data: bytes, folder: Path) -> Outcome:
    path = folder / "data.tree.jsonl"
    path.write_bytes(data)
    rows = _sequences_in(data) if is_tree_file(path) else None
    return _check(path, data, names=(path.name,), rows=rows)


def _check_parquet(data: bytes, folder: Path) -> Outcome:
    path = folder / "data.parquet"
    path.write_bytes(data)
    return _check(path, data, names=(path.name,), rows=_rows_in_parquet(path))


def _check_arrow(data: bytes, folder: Path) -> Outcome:
    return _check_folder(folder / "rows", data, {_FILE: data, "state.json": _STATE})


def _check_state(data: bytes, folder: Path) -> Outcome:
    return _check_folder(folder / "rows", data, {_FILE: _arrow(_COLUMNAR[1]), "state.json": data})


def _check_splits(data: bytes, folder: Path) -> Outcome:
    inner = {f"train/{_FILE}": _arrow(_COLUMNAR[1]), "train/state.json": _STATE}
    return _check_folder(folder / "rows", data, {**inner, "dataset_dict.json": data})


def _check_folder(folder: Path, data: bytes, files: dict[str, bytes]) -> Outcome:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return _check(folder, data, names=(*files, "rows:", str(folder)))


def _check_tools(data: bytes, folder: Path) -> Outcome:
    path = folder / "data.jsonl"
    path.write_bytes(_lines(ROWS["messages"]))
    (folder / "tools.json").write_bytes(data)
    return _check(path, data, names=("tools.json", path.name), rows=None)


def _in_columns(
    check: Callable[[bytes, Path], Outcome], write: Callable[[Sequence[Any]], bytes]
) -> Callable[[bytes, Path], Outcome | None]:
    def check_made(data: bytes, folder: Path) -> Outcome | None:
        try:
            content = write([json.loads(line) for line in data.splitlines() if line.strip()])
        # What columns do not hold is no input of theirs.
        except (ValueError, TypeError, RecursionError, OverflowError, AttributeError):
            return None
        except (pyarrow.ArrowException, KeyError):
            return None
        return check(content, folder)

    return check_made


def _loaded(data: bytes) -> Any:
    try:
        return json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return None


def _sequences_in(data: bytes) -> int | None:
    try:
        trees = [json.loads(line) for line in data.splitlines() if line.strip()]
        return sum(len(tree["sequences"]) for tree in trees[1:-1])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _rows_in_parquet(path: Path) -> int | None:
    # pyarrow looks at the end of a file alone.
    if not path.read_bytes().startswith(PARQUET):
        return None
    try:
        return pyarrow.parquet.read_table(path).num_rows
    except (pyarrow.ArrowException, OSError, ValueError):
        return None
