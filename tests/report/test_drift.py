from __future__ import annotations

import json

import numpy as np

from treetrain.data.drift import find_drift
from treetrain.data.drift_watch import DriftWatch
from treetrain.report.drift import drift_as_json, drift_lines, measure_drift


def decode(ids: list[int]) -> str:
    return "".join(chr(97 + token) for token in ids)


def watch_steps(*, unknown: int = 0, kept: tuple[int, ...] = (1, 2, 3)) -> DriftWatch:
    """Two steps, of which the second does not begin with the first."""
    first, second = np.array([1, 2]), np.array([1, 3])
    drift = find_drift(first, second, decode, source="f:1: messages[1]", later="f:1: messages[3]")
    assert drift is not None
    watch = DriftWatch(decode, steps=1, step_drifts=[drift], unknown=unknown)
    watch.rendered = [("g", first), ("g", second), ("other", first)]
    watch.kept = [("g", first), ("g", np.array(kept)), ("other", first)]
    return watch


def test_nothing_compared_is_nothing_said():
    assert drift_lines(measure_drift(DriftWatch(decode))) == []


def test_both_trees_are_built_group_by_group():
    report = measure_drift(watch_steps())
    assert (report.tree_tokens, report.kept_tree_tokens) == (3 + 2, 3 + 2)
    report = measure_drift(watch_steps(kept=(1, 2)))
    assert (report.tree_tokens, report.kept_tree_tokens) == (3 + 2, 2 + 2)


def test_text_says_message_place_pieces_and_tokens_lost():
    lines = drift_lines(measure_drift(watch_steps(kept=(1, 2))))
    assert lines[2:] == [
        "  steps: 1 of 1 do not begin with the step before them: 1 re-rendered; 1 "
        "of their tokens lost",
        "    f:1: messages[1], as f:1: messages[3] has it: re-rendered at token 1 of 2, 1 token "
        "lost",
        "      after     'b'",
        "      recorded  'c'",
        "      again     'd'",
        "  a template that keeps what was sampled would make 4 tree tokens instead of 5 (20.0 % "
        "fewer)",
    ]


def test_more_tokens_are_called_more():
    assert (
        "6 tree tokens instead of 5 (20.0 % more)"
        in drift_lines(measure_drift(watch_steps(kept=(1, 2, 3, 4))))[-1]
    )


def test_what_cannot_be_built_is_said_and_no_number_given():
    lines = drift_lines(measure_drift(watch_steps(unknown=1)))
    assert "cannot be said" in lines[-1]
    assert "instead of" not in "".join(lines)
    watch = watch_steps(unknown=1)
    watch.step_drifts *= 2
    assert "1 of 2 are taken as they are" in drift_lines(measure_drift(watch))[-1]


def test_the_most_costly_are_shown_and_the_rest_counted():
    recorded, again = np.arange(9), np.arange(9)
    watch = DriftWatch(decode, answers=5, answer_tokens=45)
    for place in range(5):
        other = again.copy()
        other[place] = 20
        drift = find_drift(recorded, other, decode, source=f"f:{place}")
        assert drift is not None
        watch.answer_drifts.append(drift)
    text = "\n".join(drift_lines(measure_drift(watch)))
    assert "5 of 5 leave their ids" in text
    assert f"{9 + 8 + 7 + 6 + 5} of 45 tokens lost" in text
    assert [f"f:{n}:" in text for n in range(5)] == [True, True, True, False, False]
    assert "and 2 more (all of them with --json)" in text
    assert len(drift_as_json(measure_drift(watch))["answers"]["found"]) == 5


def test_borders_of_tokens_are_seen_where_the_text_is_the_same():
    texts = {1: "a", 2: "b", 3: "ab"}
    watch = DriftWatch(lambda ids: "".join(texts[token] for token in ids), answers=1)
    drift = find_drift(np.array([1, 2]), np.array([3]), watch.decode, source="f:1")
    assert drift is not None
    watch.answer_drifts.append(drift)
    text = "\n".join(drift_lines(measure_drift(watch)))
    assert "recorded  'a' 'b'\n" in text
    assert "again     'ab'" in text


def test_the_object_holds_plain_values():
    found = drift_as_json(measure_drift(watch_steps(kept=(1, 2))))
    assert json.loads(json.dumps(found)) == found
    assert found["steps"]["tree_tokens"] == 5
    assert found["steps"]["kept_tree_tokens"] == 4
    assert found["steps"]["found"][0] == {
        "kind": "re-rendered",
        "source": "f:1: messages[1]",
        "later": "f:1: messages[3]",
        "place": 1,
        "length": 2,
        "lost": 1,
        "before": [1],
        "recorded": [2],
        "again": [3],
        "text": {"before": "b", "recorded": "c", "again": "d"},
    }


def test_without_a_tokenizer_ids_are_shown():
    watch = watch_steps(unknown=1)
    watch.decode = None
    report = measure_drift(watch)
    assert "      recorded  2" in drift_lines(report)
    assert "text" not in drift_as_json(report)["steps"]["found"][0]
