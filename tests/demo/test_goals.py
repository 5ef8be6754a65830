from __future__ import annotations

import copy
from collections import Counter
from random import Random

import pytest

from treetrain.demo.goals import cured, safe_at_night, unchanged, wet_enough
from treetrain.demo.greenhouse import Greenhouse, draw_greenhouse
from treetrain.demo.tasks import KINDS, check_round
from treetrain.demo.trajectories import draw_task


@pytest.fixture
def greenhouse() -> Greenhouse:
    return draw_greenhouse(Random("goals"))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_trial_of_every_kind_reaches_its_goal(kind) -> None:
    needed = Counter()
    for number in range(60):
        greenhouse, task = draw_task(f"goals/{number}", kind)
        needed[task.goal(greenhouse)] += 1
        routine = task.routine(Random(number))
        act = next(routine)
        while act.tool is not None:
            act = routine.send(greenhouse.call(act.tool, act.arguments))
        assert task.goal(greenhouse), (number, task.request)
    # Doing nothing is no way to do it, but where nothing is asked for.
    assert (needed[False] > 0) == (kind is not check_round)


def test_water_must_be_enough_and_not_too_much(greenhouse: Greenhouse) -> None:
    low, high = greenhouse.benches[2].plant.moisture
    goal = wet_enough(greenhouse, 2)
    found = []
    for moisture in (low - 1, low, high, high + 1):
        after = copy.deepcopy(greenhouse)
        after.benches[2].moisture = moisture
        found.append(goal(after))
    assert found == [False, True, True, False]


def test_a_change_that_nobody_asked_for_misses_every_goal(greenhouse: Greenhouse) -> None:
    greenhouse.benches[1].moisture = greenhouse.benches[1].plant.moisture[0]
    goals = [
        wet_enough(greenhouse, 1),
        safe_at_night(greenhouse, ()),
        unchanged(greenhouse),
        cured(greenhouse, 1),
    ]
    assert all(goal(greenhouse) for goal in goals)
    greenhouse.benches[3].moisture += 8
    assert not any(goal(greenhouse) for goal in goals)


def test_remedy_is_used_once_where_it_helps(greenhouse: Greenhouse) -> None:
    bench = greenhouse.benches[4]
    bench.sick = True
    greenhouse.stock[bench.plant.remedy] = 2
    goal = cured(greenhouse, 4)
    assert not goal(greenhouse)
    greenhouse.call("treat", {"bench": 4, "remedy": bench.plant.remedy})
    assert goal(greenhouse)
    greenhouse.call("treat", {"bench": 4, "remedy": bench.plant.remedy})
    assert not goal(greenhouse)
