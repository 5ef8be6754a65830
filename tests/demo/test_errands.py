from __future__ import annotations

import copy
from random import Random

import pytest

from treetrain.demo.errands import Errand, draw_errand
from treetrain.demo.greenhouse import PLANTS, Greenhouse

ERRANDS = [draw_errand(f"test/{number}") for number in range(120)]


def play(errand: Errand, trial: str, *, bench: int | None = None) -> Greenhouse:
    """The greenhouse after a trial, in which calls may go to another bench."""
    own = copy.deepcopy(errand.greenhouse)
    routine = errand.task.routine(Random(trial))
    act = next(routine)
    while act.tool is not None:
        arguments = dict(act.arguments)
        if bench is not None and "bench" in arguments:
            arguments["bench"] = bench
        act = routine.send(own.call(act.tool, arguments))
    return own


def test_every_trial_of_the_routine_does_the_errand() -> None:
    for errand in ERRANDS:
        before = copy.deepcopy(errand.greenhouse)
        assert all(play(errand, str(trial)) == errand.wanted for trial in range(4))
        assert errand.greenhouse == before


def test_doing_nothing_does_no_errand() -> None:
    assert all(errand.greenhouse != errand.wanted for errand in ERRANDS)


def test_the_same_acts_at_another_bench_do_no_errand() -> None:
    for errand in ERRANDS:
        other = errand.bench % 8 + 1
        assert play(errand, "0", bench=other) != errand.wanted


def test_the_request_names_bench_plant_and_litres_but_not_what_the_tools_tell() -> None:
    changes = set()
    for errand in ERRANDS:
        request = errand.task.request
        assert f"the {errand.plant} on bench {errand.bench}" in request
        assert not any(plant.remedy in request or plant.pest in request for plant in PLANTS)
        bench, wanted = (g.benches[errand.bench] for g in (errand.greenhouse, errand.wanted))
        changes.add(
            (request.split()[0], wanted.room, wanted.sick, bench.moisture == wanted.moisture)
        )
    # Each way of every kind: water; treat or water; bring in or water.
    assert len(changes) == 5


def test_the_same_seed_draws_the_same_errand() -> None:
    one, other = draw_errand("seed"), draw_errand("seed")
    assert (one.greenhouse, one.wanted) == (other.greenhouse, other.wanted)
    assert one.task.request == other.task.request


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("fly", {}),
        ("water", {"bench": 9, "litres": 1}),
        ("water", {"bench": 1}),
        ("water", {"bench": "one", "litres": 1}),
        ("look_up_plant", {"plant": "oak"}),
        ("read_sensor", {"bench": 1, "kind": "plant"}),
        ("check_stock", {"item": "gold"}),
        ("treat", {"bench": 1, "remedy": "gold"}),
        ("move_tray", {"bench": 1, "room": "moon"}),
    ],
)
def test_a_call_that_names_nothing_of_the_greenhouse_is_an_error(
    tool: str, arguments: dict[str, object]
) -> None:
    greenhouse = copy.deepcopy(ERRANDS[0].greenhouse)
    if tool == "treat":  # an empty shelf is an answer, not an error
        assert greenhouse.call(tool, arguments) == {"error": "no gold in the store"}
    else:
        with pytest.raises(ValueError, match=f"got '{tool}' with"):
            greenhouse.call(tool, arguments)
    assert greenhouse == ERRANDS[0].greenhouse
