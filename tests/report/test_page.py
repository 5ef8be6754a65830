from __future__ import annotations

import re

import pytest
from tests.report.hostile import HOSTILE, assert_harmless

from treetrain.data.report import ReadReport
from treetrain.data.sample import Sample
from treetrain.report.inspection import inspect_samples
from treetrain.report.largest import largest_trees
from treetrain.report.page import PageContent, render_page, write_page
from treetrain.report.tables import as_json

CHECK = {
    "equal": True,
    "dtype": "float32",
    "reduction": "path_mean",
    "sequences": 2,
    "flat_tokens": 9,
    "tree_tokens": 6,
    "loss": {"separate": 1.5, "tree": 1.5},
    "failures": [],
    "comparisons": [
        {"quantity": "loss", "error": 1e-7, "allowed": 1e-5, "passes": True, "separate_error": None}
    ],
    "leak_checks": [{"rule": "sibling", "moved": 0.0, "places": 3, "passes": True}],
    "worst_token": None,
    "worst_parameter": None,
}


def samples_named(name: str) -> list[Sample]:
    paths = ([1, 2, 3, 4], [1, 2, 3, 5, 6], [1, 2, 7])
    return [Sample(tokens, group=name, source=name) for tokens in paths]


def content_of(text: str) -> PageContent:
    samples = samples_named(text)

    def decode(ids: object) -> str:
        return text

    worst = {"token": 3, "place": 1, "sequence": 0, "source": text}
    return PageContent(
        title=text,
        notes=[text],
        inspection=as_json(inspect_samples(samples), ReadReport(text), decode),
        trees=largest_trees(samples),
        decode=decode,
        check={**CHECK, "failures": [text], "worst_token": worst, "worst_parameter": text},
        steps=[{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}],
        config=f"a: {text}\nb: {text}",
    )


def test_text_of_the_data_is_shown_and_not_obeyed() -> None:
    read = assert_harmless(render_page(content_of(HOSTILE)))
    assert read.text.count("<script>alert(1)</script>") > 10


def test_very_long_text_does_not_make_a_long_page() -> None:
    assert len(render_page(content_of("<" * 1_000_000))) < 400_000


def test_the_page_asks_for_nothing_and_forbids_to_ask() -> None:
    page = render_page(content_of("plain"))
    assert "default-src 'none'" in page
    assert not re.findall(r"https?:|url\(|@import", page)


def test_an_empty_page_is_whole() -> None:
    read = assert_harmless(render_page(PageContent("nothing")))
    assert {"html", "main", "h1"} <= read.tags
    assert "h2" not in read.tags


def test_figures_are_those_of_the_inspection() -> None:
    text = assert_harmless(render_page(content_of("plain"))).text
    assert "12 flat tokens" not in text  # figures stand in tables, not in sentences
    found = inspect_samples(samples_named("plain"))
    assert f"FLOP bound{found.flop_bound:.2f}" in text
    assert "tokens, flat over tree 1.71" in text


@pytest.mark.parametrize(("equal", "word"), [(True, "equal"), (False, "NOT EQUAL")])
def test_the_verdict_of_the_check_is_said(equal: bool, word: str) -> None:
    page = render_page(PageContent("x", check={**CHECK, "equal": equal}))
    assert f"<b>{word}</b>" in page
    assert ('class="verdict good"' in page) is equal


def test_a_leak_is_marked() -> None:
    leak = {"rule": "sibling", "moved": 0.5, "places": 3, "passes": False}
    page = render_page(PageContent("x", check={**CHECK, "leak_checks": [leak]}))
    assert '<td class="bad"><bdi>LEAK</bdi></td>' in page


def test_a_page_that_cannot_be_made_leaves_the_old_one(tmp_path) -> None:
    path = tmp_path / "page.html"
    write_page(path, PageContent("old"))
    with pytest.raises(KeyError):
        write_page(path, PageContent("new", check={}))
    assert "old" in path.read_text(encoding="utf-8")
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]


def test_a_page_that_cannot_be_written_leaves_nothing_behind(tmp_path):
    (tmp_path / "page.html").mkdir()
    with pytest.raises(OSError, match=r"page\.html"):
        write_page(tmp_path / "page.html", PageContent(title="x"))
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
