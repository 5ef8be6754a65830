from __future__ import annotations

from treetrain.demo.acting import Attempt
from treetrain.demo.agreement import Agreement
from treetrain.demo.told import tell_agreement, tell_attempts


def test_shares_before_and_after_stand_below_each_other() -> None:
    before = [Attempt(False, 0, "malformed")] * 4
    after = [*[Attempt(True, 5, "finished")] * 3, Attempt(False, 2, "refused")]
    lines = tell_attempts(before, after)
    assert lines[1].endswith(" 0 of 4 (0%)")
    assert lines[2].endswith(" 3 of 4 (75%), 17 tools called")
    assert lines[3].endswith(": 1 refused")
    assert len(tell_attempts(before, after[:3])) == 3


def test_agreement_names_difference_and_change() -> None:
    text = "\n".join(tell_agreement(Agreement(6, 4, 1_000, 1.2e-7, 0.14)))
    assert "6 steps of SGD over 4 sequences" in text
    assert "1,000 parameters: largest difference 1.2e-07" in text
    assert text.endswith("up to 1.4e-01")
