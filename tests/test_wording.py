from __future__ import annotations

import pytest

from treetrain.wording import say_count


@pytest.mark.parametrize(
    ("count", "noun", "said"),
    [
        (0, "group", "0 groups"),
        (1, "group", "1 group"),
        (2, "group", "2 groups"),
        (1, "branch", "1 branch"),
        (1234, "branch", "1,234 branches"),
    ],
)
def test_a_noun_has_the_number_that_goes_with_its_count(count: int, noun: str, said: str) -> None:
    assert say_count(count, noun) == said
