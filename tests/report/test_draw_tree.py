from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.report.hostile import HOSTILE, assert_harmless

from treetrain.report.draw_tree import MOST_RUNS, WIDTH, draw_tree
from treetrain.report.tree_section import show_trees
from treetrain.testing.trees import tree_family
from treetrain.tree.build import build_prefix_tree

FAMILY = tree_family()


def hidden_tokens(drawing) -> int:
    return sum(run.hidden_tokens for run in drawing.runs)


def random_tree(count: int, seed: int = 0):
    random = np.random.default_rng(seed)
    paths: list[list[int]] = [[1]]
    for _ in range(count):
        start = paths[-1][: random.integers(1, len(paths[-1]) + 1)]
        paths.append(start + random.integers(0, 50, random.integers(1, 40)).tolist())
    return build_prefix_tree(paths)


def test_worked_example_is_two_runs_and_the_second_hangs_from_the_first() -> None:
    drawing = draw_tree(build_prefix_tree(FAMILY["worked_example"]), "example")
    first, second = drawing.runs
    assert (first.parent, first.depth, first.tokens) == (-1, 0, 7)
    assert (second.parent, second.depth, second.tokens) == (0, 3, 2)
    assert [(part.tokens, part.sequences) for part in first.parts] == [(3, 3), (2, 2), (2, 1)]
    assert first.parts[0].text == "1 2 3"


@pytest.mark.parametrize("name", FAMILY)
def test_small_trees_are_drawn_whole(name: str) -> None:
    tree = build_prefix_tree(FAMILY[name])
    drawing = draw_tree(tree, name)
    assert sum(run.tokens for run in drawing.runs) == tree.num_tokens
    assert hidden_tokens(drawing) == 0
    assert_harmless(drawing.svg)


@given(st.lists(st.lists(st.integers(0, 2), max_size=12), min_size=1, max_size=120))
def test_every_token_is_drawn_or_counted(sequences: Sequence[list[int]]) -> None:
    tree = build_prefix_tree(list(sequences))
    drawing = draw_tree(tree, "any")
    roots = sum(run.parent < 0 for run in drawing.runs)
    shown = sum(run.tokens for run in drawing.runs)
    assert len(drawing.runs) <= MOST_RUNS
    assert all(run.parent < row for row, run in enumerate(drawing.runs))
    if roots == int((tree.parents < 0).sum()):
        assert shown + hidden_tokens(drawing) == tree.num_tokens
    assert "drawn" not in drawing.note or f"{shown:,} of {tree.num_tokens:,} tokens" in drawing.note


def test_a_tree_of_ten_thousand_nodes_is_drawn_in_a_bounded_size() -> None:
    tree = random_tree(6000)
    assert tree.num_nodes > 10_000
    drawing = draw_tree(tree, "large", lambda ids: "&" * 1000)
    assert len(drawing.runs) == MOST_RUNS
    assert len(drawing.svg) < 8_000_000
    assert drawing.svg.count("<rect") < MOST_RUNS * WIDTH / 6
    assert all(run.parent < row for row, run in enumerate(drawing.runs))


def test_a_chain_of_ten_thousand_nodes_is_one_bar_of_few_parts() -> None:
    tree = build_prefix_tree([list(range(length)) for length in range(1, 10_001, 2)])
    drawing = draw_tree(tree, "chain")
    (run,) = drawing.runs
    assert len(run.parts) < 150
    assert sum(part.nodes for part in run.parts) == tree.num_nodes
    assert run.tokens == tree.num_tokens


def test_nothing_is_drawn_outside() -> None:
    svg = draw_tree(random_tree(300), "bounds").svg
    for x, width in re.findall(r'<rect class="part" x="([\d.]+)".*? width="([\d.]+)"', svg):
        assert 0 <= float(x) <= float(x) + float(width) < WIDTH


def test_text_of_the_data_is_shown_and_not_obeyed() -> None:
    tree = build_prefix_tree([[1, 2, 3], [1, 2, 4]])
    read = assert_harmless(draw_tree(tree, HOSTILE, lambda ids: HOSTILE).svg)
    assert read.text.count("<script>alert(1)</script>") == 4  # the drawing, and three nodes


def test_an_empty_tree_is_an_empty_drawing() -> None:
    drawing = draw_tree(build_prefix_tree([[]]), "empty")
    assert drawing.runs == ()
    assert_harmless(drawing.svg)


def test_a_text_is_cut_once_and_what_is_left_out_is_counted_once():
    tree = build_prefix_tree([list(range(1000))])
    first = draw_tree(tree, "a tree", lambda ids: "long " * len(ids)).runs[0].parts[0]
    assert str(first).endswith("long  … (976 more tokens)")
    shown = show_trees([("a tree", tree)], lambda ids: "long " * len(ids))
    assert "(40 more characters)</" in shown.partition("<table")[2]
    assert "more token" not in shown.partition("<table")[2]
