from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from docs.draw_example import FILLS, FOLDER, SEQUENCES, draw_all

from treetrain.tree.build import build_prefix_tree


@pytest.mark.parametrize("name", sorted(draw_all()))
def test_committed_drawing_is_what_the_script_makes(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == draw_all()[name]


@pytest.mark.parametrize("name", sorted(draw_all()))
def test_drawing_is_well_formed(name: str) -> None:
    assert ElementTree.fromstring(draw_all()[name]).tag.endswith("svg")


def test_mask_colours_as_many_cells_as_there_are_visible_pairs() -> None:
    tree = build_prefix_tree(SEQUENCES)
    cells = re.findall(r'width="44" height="44" fill="(#\w+)"', draw_all()["mask.svg"])
    assert len(cells) == tree.num_tokens**2
    assert sum(fill in FILLS for fill in cells) == int((tree.depth_positions + 1).sum())
