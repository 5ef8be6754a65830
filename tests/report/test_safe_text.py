from __future__ import annotations

import html
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from treetrain.report.safe_text import MOST_MARKS, escape, reveal, shorten


@given(st.text(alphabet=st.characters(), max_size=60))
def test_whatever_the_text_it_becomes_utf8_without_markup(text: str) -> None:
    shown = escape(text)
    shown.encode("utf-8")
    assert not set("<>\"'") & set(shown)
    assert not {c for c in shown if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")}


@given(st.text(alphabet=st.characters(categories=("L", "N", "P", "S", "Zs")), max_size=60))
def test_text_that_can_be_seen_is_shown_as_it_is(text: str) -> None:
    assert html.unescape(escape(text)) == text


def test_characters_that_turn_the_direction_are_written_as_numbers() -> None:
    assert reveal("a\u202eb\u2066c\u200fd") == "a\\u202eb\\u2066c\\u200fd"


def test_joiners_of_pictures_stay() -> None:
    family = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
    assert reveal(family) == family


def test_towers_of_marks_are_cut_down() -> None:
    assert reveal("e" + "\u0301" * 6) == "e" + "\u0301" * MOST_MARKS + "\\u0301" * 2


def test_what_is_cut_is_counted() -> None:
    assert shorten("x" * 1300, 100) == "x" * 100 + " … (1,200 more characters)"
    assert shorten("x" * 100, 100) == "x" * 100


def test_an_escape_is_never_cut_in_half() -> None:
    assert escape("&" * 10, 3).startswith("&amp;&amp;&amp; …")
