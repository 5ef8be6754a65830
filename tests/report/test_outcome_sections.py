from __future__ import annotations

from tests.report.hostile import HOSTILE, assert_harmless

from treetrain.report.outcome_sections import show_agreement, show_attempts


def attempt(solved: bool, calls: int, ended: str) -> dict[str, object]:
    return {"solved": solved, "calls": calls, "ended": ended}


def test_attempts_are_counted_before_and_after() -> None:
    before = [attempt(False, 0, "malformed")] * 4
    after = [attempt(True, 3, "finished")] * 3 + [attempt(False, 1, "refused")]
    markup = show_attempts({"before": before, "after": after})
    assert "<dd>0%</dd>" in markup
    assert "<dd>75%</dd>" in markup
    for cells in (("0 of 4", "0", "0", "4", "0"), ("3 of 4", "10", "3", "0", "1")):
        assert "".join(f"<td><bdi>{cell}</bdi></td>" for cell in cells) in markup


def test_names_of_ends_are_shown_and_not_obeyed() -> None:
    assert_harmless(show_attempts({HOSTILE: [attempt(True, 1, HOSTILE)]}))


def test_agreement_names_difference_beside_change() -> None:
    markup = show_agreement(
        {
            "steps": 6,
            "sequences": 4,
            "parameters": 1234,
            "largest_difference": 1.2e-7,
            "largest_change": 0.14,
        }
    )
    assert "<dd>1.2e-07</dd>" in markup
    assert "<dd>0.14</dd>" in markup
    assert "of 1,234 parameters after 6 steps of SGD over 4 sequences" in markup
