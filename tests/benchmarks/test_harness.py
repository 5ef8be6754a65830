from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

HARNESS = Path(__file__).resolve().parents[2] / "benchmarks" / "harness.py"


@pytest.fixture(scope="module")
def harness() -> ModuleType:
    spec = importlib.util.spec_from_file_location("treetrain_benchmark_harness", HARNESS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        # Dataclasses look their module up while they are made.
        patch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
    return module


def run(harness: ModuleType, arguments: list[str]) -> None:
    parser = harness.make_parser("test")
    cases = {"one": lambda: {"seconds": 0.5}, "two": lambda: {"seconds": 2, "kind": "lists"}}
    harness.run_cases(cases, parser.parse_args(arguments), parser)


def test_json_is_one_object_and_nothing_else(
    harness: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    run(harness, ["--json", "--seed", "3"])
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert list(found) == ["machine", "results"]
    assert found["results"] == [
        {"name": "one", "seconds": 0.5},
        {"name": "two", "seconds": 2, "kind": "lists"},
    ]
    assert found["machine"]["seed"] == 3
    assert found["machine"]["numpy"] == np.__version__
    assert not {"node", "host", "hostname"} & set(found["machine"])
    assert printed.err == ""


def test_only_chooses_cases_and_may_be_repeated(
    harness: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    run(harness, ["--json", "--only", "two", "--only", "one"])
    results = json.loads(capsys.readouterr().out)["results"]
    assert [result["name"] for result in results] == ["two", "one"]


def test_unknown_case_is_a_usage_error(
    harness: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        run(harness, ["--only", "three"])
    assert stopped.value.code == 2
    assert "--only must be one of one, two, got three" in capsys.readouterr().err


def test_table_names_every_figure(harness: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    run(harness, [])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["name", "seconds"]
    assert lines[1].split() == ["one", "0.5"]
    assert lines[3].split() == ["two", "2", "lists"]


def test_contestants_take_turns_and_every_round_starts_with_another(harness: ModuleType) -> None:
    calls: list[str] = []
    timings = harness.time_in_turns(
        {name: lambda name=name: calls.append(name) for name in "ab"}, rounds=3, warmup=1
    )
    assert "".join(calls) == "ba" + "ab" + "ba" + "ab"
    assert [len(timings.seconds[name]) for name in "ab"] == [3, 3]


def test_a_long_contestants_parts_are_spread_over_the_slots_of_a_round(harness: ModuleType) -> None:
    calls: list[str] = []
    timings = harness.time_in_turns(
        {
            "short": lambda: calls.append("s"),
            "long": [lambda part=part: calls.append(part) for part in "12345"],
        },
        rounds=2,
        warmup=0,
        slots=2,
    )
    assert "".join(calls) == "s12" + "345s" + "s12" + "345s"
    assert [len(seconds) for seconds in timings.seconds.values()] == [2, 2]


def test_a_turn_may_begin_with_a_call_that_does_not_count(
    harness: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, calls = [0.0], []

    def wait(name: str) -> None:
        now[0] += 1.0
        calls.append(name)

    monkeypatch.setattr(harness, "perf_counter", lambda: now[0])
    timings = harness.time_in_turns(
        {"short": lambda: wait("s"), "long": [lambda part=part: wait(part) for part in "123"]},
        rounds=1,
        warmup=0,
        slots=2,
        settle=True,
    )
    assert "".join(calls) == "ss11" + "223ss"
    assert timings.seconds == {"short": [1.0], "long": [3.0]}


def test_the_time_of_parts_is_their_sum_and_of_repeated_calls_their_mean(
    harness: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]

    def wait(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(harness, "perf_counter", lambda: now[0])
    short = iter([1.0, 3.0])
    timings = harness.time_in_turns(
        {"short": lambda: wait(next(short)), "long": [lambda: wait(5.0)] * 4},
        rounds=1,
        warmup=0,
        slots=2,
    )
    assert timings.seconds == {"short": [2.0], "long": [20.0]}


def test_speedup_is_compared_within_each_round(harness: ModuleType) -> None:
    timings = harness.Timings({"slow": [2.0, 40.0, 6.0], "fast": [1.0, 10.0, 2.0]})
    assert timings.speedup("slow", "fast") == harness.Spread(3.0, 2.5, 3.5)
    assert timings.spread("slow") == harness.Spread(6.0, 4.0, 23.0)
    assert harness.spread_of([7.0]) == harness.Spread(7.0, 7.0, 7.0)


def test_peak_counts_what_was_freed_during_the_call(harness: ModuleType) -> None:
    def allocate() -> np.ndarray:
        large = np.ones(1_000_000, np.int64)
        return large[:10].copy()

    peak = harness.measure_peak(allocate)
    assert 8_000_000 <= peak < 9_000_000
