from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from treetrain.data.sample import Sample
from treetrain.demo.acting import Attempt
from treetrain.demo.agreement import Agreement
from treetrain.demo.learning import Step
from treetrain.demo.lines import (
    MARGIN,
    StageLines,
    tell_agreement,
    tell_attempts,
    tell_data,
    tell_inspection,
    tell_measurement,
    tell_report,
    tell_steps,
)
from treetrain.demo.measure import Measurement, Timing
from treetrain.demo.stages import check
from treetrain.demo.trajectories import make_rows, write_rows
from treetrain.report.inspection import inspect_samples
from treetrain.testing.models import make_tiny_model

SAMPLES = [Sample(tokens) for tokens in ([1, 2, 3, 4], [1, 2, 3, 5, 6])]


def test_stage_is_a_title_its_lines_and_an_empty_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    StageLines(silent=False).say("inspect", ["one", "two"])
    assert capsys.readouterr().out == f"{'inspect':<{MARGIN}}one\n{'':<{MARGIN}}two\n\n"


def test_silent_lines_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    page = StageLines(silent=True)
    page.say("inspect", ["one"])
    page.working("training", 1, 2)
    assert capsys.readouterr() == ("", "")


def test_progress_is_a_line_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    StageLines(silent=False).working("training", 1, 2)
    assert capsys.readouterr() == ("", f"{'':<{MARGIN}}... training: 1 of 2\n")


def test_data_are_counted_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    write_rows(make_rows(tasks=2, trials=3, seed=0), path)
    text = "\n".join(tell_data(path, 17))
    assert "2 tasks, 6 trajectories" in text
    assert "9 tools" in text
    assert text.endswith(": 17")


def test_inspection_names_tokens_and_verdict() -> None:
    text = "\n".join(tell_inspection(inspect_samples(SAMPLES)))
    assert "9 flat tokens -> 6 tree tokens in 1 trees with 2 leaves" in text
    assert text.endswith(": pays")


def test_report_names_equality_and_errors() -> None:
    stages: list[tuple[str, int, int]] = []
    report = check(make_tiny_model("llama"), SAMPLES, lambda *told: stages.append(told))
    text = "\n".join(tell_report(report))
    assert text.startswith("equal to 2 sequences")
    assert text.endswith("leaks none")
    assert stages


def test_losses_stand_below_the_steps_that_they_are_means_of() -> None:
    steps = [Step(float(number), 1.0, 10, 30) for number in range(9)]
    lines = tell_steps(steps, 4)
    assert "9 steps, each over 4 new errands" in lines[0]
    assert lines[1].split() == ["to", "step", "2", "4", "6", "8", "9"]
    assert lines[2].split() == ["loss", "0.500", "2.500", "4.500", "6.500", "8.000"]
    assert len(lines[1]) == len(lines[2])
    assert lines[3] == "9 s for 270 tokens of practice.jsonl, of which 90 were computed"


def test_shares_before_and_after_stand_below_each_other() -> None:
    before = [Attempt(False, 0, "malformed")] * 4
    after = [*[Attempt(True, 5, "finished")] * 3, Attempt(False, 2, "refused")]
    lines = tell_attempts(before, after)
    assert lines[1].endswith("  0 of 4 (0%), 0 tool calls; the others ended: 4 malformed")
    assert lines[2].endswith("  3 of 4 (75%), 17 tool calls; the others ended: 1 refused")
    assert tell_attempts(before, after[:3])[2].endswith("  3 of 3 (100%), 15 tool calls")


def test_agreement_names_difference_and_change() -> None:
    text = "\n".join(tell_agreement(Agreement(6, 4, 1_000, 1.2e-7, 0.14)))
    assert "6 steps of SGD over 4 sequences" in text
    assert "of 1,000 parameters the largest difference is 1.2e-07" in text
    assert text.endswith("up to 0.14")


def test_measurement_names_speedup_beside_the_bound() -> None:
    measurement = Measurement(
        Timing((1.0, 2.0, 4.0)),
        Timing((9.0, 8.0, 10.0)),
        sequences=3,
        flat_tokens=300,
        tree_tokens=100,
        bound=5.0,
        loss_difference=1e-7,
    )
    text = "\n".join(tell_measurement(measurement))
    assert "9.00 s   (8.00 to 10.00, 3 rounds)" in text
    assert "2.00 s   (1.00 to 4.00, 3 rounds)" in text
    assert "4.50     FLOP bound 5.00, of which it is 90%" in text
    assert "measure again" not in text
    lines = tell_measurement(replace(measurement, bound=3.0))
    assert lines[-1].startswith("more than the bound allows: ")
