"""The plan of the house names every room, and none that is gone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import treetrain

SOURCE = Path(treetrain.__file__).parent
PLAN = Path(__file__).parents[1] / "docs" / "design.md"
FOLDERS = sorted(path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists())


def rooms_of(folder: str) -> str:
    """What the plan says is in a folder: its row of the table, or its sentence."""
    text = PLAN.read_text(encoding="utf-8")
    row = re.search(rf"^\| \d \| `{folder}/` \|(.*?)\|", text, re.M)
    return row[1] if row else text.partition(f"`{folder}/` ships")[2].partition("\n\n")[0]


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_file_of_a_folder_is_named_in_its_row(folder: str) -> None:
    files = {path.stem for path in (SOURCE / folder).glob("*.py")} - {"__init__"}
    named = set(re.findall(r"`(\w+)`", rooms_of(folder)))
    assert files <= named


@pytest.mark.parametrize("folder", [folder for folder in FOLDERS if folder != "testing"])
def test_every_room_that_is_named_is_there(folder: str) -> None:
    files = {path.stem for path in (SOURCE / folder).glob("*.py")}
    assert set(re.findall(r"`(\w+)`", rooms_of(folder))) <= files | set(FOLDERS)
