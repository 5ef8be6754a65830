from __future__ import annotations

import pytest

from treetrain.wording import say_count, say_duration, say_short


@pytest.mark.parametrize(
    ("count", "noun", "said"),
    [
        (0, "group", "0 groups"),
        (1, "group", "1 group"),
        (2, "group", "2 groups"),
        (1, "branch", "1 branch"),
        (1234, "branch", "1,234 branches"),
        (1, "leaf", "1 leaf"),
        (2, "leaf", "2 leaves"),
    ],
)
def test_a_noun_has_the_number_that_goes_with_its_count(count: int, noun: str, said: str) -> None:
    assert say_count(count, noun) == said


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (999, "999"), (999.9, "1k"), (1234, "1.23k"), (-2.5e6, "-2.5M"), (7.88e14, "788T")],
)
def test_large_figures_are_written_short(value: float, text: str) -> None:
    assert say_short(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.0004, "0 s"),
        (0.25, "250 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1 s"),
        (59.4, "59 s"),
        (60, "1 min 0 s"),
        (3599.6, "1 h 0 min"),
        (90_000, "1 d 1 h"),
    ],
)
def test_durations_are_said_in_two_units(seconds: float, text: str) -> None:
    assert say_duration(seconds) == text
