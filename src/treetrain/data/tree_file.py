"""Files of trees, `.tree.jsonl`: format and version, one tree a line, and a line that counts.

The last line tells a file that was cut off from a whole one. Trees are written and read one after
the other; `tree_rows` holds what a line says.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from treetrain.data.sample import Ints, Sample, shared_keys
from treetrain.data.text_files import load_json
from treetrain.data.tree_rows import read_tree_row
from treetrain.data.written_rows import TreeArrays, write_tree_row

FORMAT = "treetrain.tree"
VERSION = 1

Build = Callable[[list[Ints], list[Ints] | None], TreeArrays]


@dataclass(frozen=True)
class TreeFileCounts:
    """What was written.

    Attributes:
        trees: lines of trees, one for each group.
        sequences: sequences in them, empty ones and duplicates included.
        tree_tokens: tokens in the nodes.
        flat_tokens: sum of the sequences' lengths.
    """

    trees: int
    sequences: int
    tree_tokens: int
    flat_tokens: int


def tree_lines(samples: Sequence[Sample], build: Build) -> Iterator[tuple[str, TreeFileCounts]]:
    r"""Writes samples as the lines of a tree file.

    Args:
        samples: the sequences, in the order that reading gives back.
        build: `build_prefix_tree`; it is handed over because data and trees do not know each other.

    Yields:
        Each line with its "\n", and what was written up to it.

    Raises:
        ValueError: only some samples of a group have keys, or a group or trajectory is named by
            something that JSON does not hold.
    """  # noqa: DOC502 (shared_keys and write_tree_row raise)
    members: dict[Hashable, list[int]] = {}
    for index, sample in enumerate(samples):
        members.setdefault(sample.group, []).append(index)
    done = TreeFileCounts(0, 0, 0, 0)
    yield _line({"format": FORMAT, "version": VERSION}), done
    for indices in members.values():
        own = [samples[index] for index in indices]
        tree = build([sample.tokens for sample in own], shared_keys(samples, indices))
        done = TreeFileCounts(
            trees=done.trees + 1,
            sequences=done.sequences + len(own),
            tree_tokens=done.tree_tokens + len(tree.tokens),
            flat_tokens=done.flat_tokens + sum(map(len, own)),
        )
        yield _line(write_tree_row(tree, own, indices)), done
    yield _line({"trees": done.trees, "sequences": done.sequences}), done


def is_tree_file(path: Path) -> bool:
    """Says whether a file's first line is that of a tree file, of whatever version.

    Args:
        path: the file.

    Returns:
        True where it names the format.
    """
    with path.open("rb") as file:
        # The first line of other files may be as long as the file.
        start = file.read(200).split(b"\n", 1)[0]
    try:
        first = json.loads(start)
    except (ValueError, RecursionError):
        return False
    return isinstance(first, dict) and cast(dict[str, Any], first).get("format") == FORMAT


def iter_tree_file(path: Path) -> Iterator[Sample]:
    """Reads a tree file in the order its sequences were written in.

    In memory is one tree, and what waits for its turn: nothing where each group's sequences stood
    together.

    Args:
        path: the file.

    Yields:
        The sequences.

    Raises:
        ValueError: a line is wrong or missing; file and line are named.
    """
    waiting: dict[int, Sample] = {}
    turn = trees = number = 0
    end: Any = None
    with path.open("rb") as file:
        for number, text in enumerate(file, start=1):
            source = f"{path.name}:{number}"
            line = load_json(text, source)
            if number == 1:
                _check_header(line, source)
                continue
            if end is not None:
                raise ValueError(f"{source}: nothing must follow the line that counts, got a line")
            if isinstance(line, dict) and "nodes" not in line and "trees" in line:
                end = cast(dict[str, Any], line)
                continue
            trees += 1
            for index, sample in read_tree_row(line, source):
                if index < turn or index in waiting:
                    raise ValueError(
                        f"{source}: field 'sequences' must have every index once, got {index} again"
                    )
                waiting[index] = sample
                while turn in waiting:
                    yield waiting.pop(turn)
                    turn += 1
    _check_end(end, f"{path.name}:{max(number, 1)}", trees=trees, sequences=turn + len(waiting))
    if waiting:
        raise ValueError(
            f"{path.name}:{number}: sequences must be numbered without a gap, got none with index "
            f"{turn}"
        )


def _line(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False) + "\n"


def _check_header(line: Any, source: str) -> None:
    header = cast(dict[str, Any], line) if isinstance(line, dict) else {}
    if header.get("format") != FORMAT:
        raise ValueError(
            f"{source}: the first line must name the format {FORMAT!r}, got {line!r:.60}"
        )
    version = header.get("version")
    if type(version) is not int or version != VERSION:
        raise ValueError(
            f"{source}: field 'version' must be {VERSION}, got {version!r:.60}: the file was "
            f"written by another treetrain"
        )


def _check_end(end: Any, source: str, *, trees: int, sequences: int) -> None:
    if end is None:
        raise ValueError(
            f"{source}: a tree file must end with the line that counts its trees, got none: the "
            f"file was cut off"
        )
    if end != {"trees": trees, "sequences": sequences}:
        raise ValueError(
            f"{source}: the last line must count {trees} trees and {sequences} sequences, as there "
            f"are, got {end!r:.80}"
        )
