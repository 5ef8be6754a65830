from __future__ import annotations

import re
from pathlib import Path

import pytest

import treetrain

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_to_files_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_files_named_in_the_docs_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for name in re.findall(r"`((?:docs|tests|examples|benchmarks|src)/[\w/.-]+\.\w+)`", text):
        assert (ROOT / name).exists(), f"{path.name} names {name}"


def test_make_targets_named_in_the_docs_exist() -> None:
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text(), re.M))
    for path in PAGES:
        named = re.findall(r"(?:^|`)make ([a-z][a-z0-9-]*)", path.read_text(encoding="utf-8"), re.M)
        assert set(named) <= targets, path.name


def test_every_verb_is_in_the_readme() -> None:
    from treetrain.cli.main import VERBS

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for verb in VERBS:
        assert f"treetrain {verb}" in text


def test_every_public_name_is_on_an_api_page() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs/api").glob("*.md"))
    said = re.findall(r"^::: treetrain\.(.*)\.(\w+)$", text, re.M)
    homes = {name: home for home, name in said}
    assert homes == treetrain._HOMES
    assert set(homes) | {"__version__"} == set(treetrain.__all__)
