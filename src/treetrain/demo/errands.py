"""Errands in the greenhouse: three kinds of short task, judged by the state they leave behind.

An errand always asks for exactly one change; which one follows from what the tools answer. What
the agent says is not judged. Its thoughts are short: from a few hundred steps so small a model as
the example's learns to carry a number from a request to a call, and no arithmetic.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from treetrain.demo.agent import Act, Routine, Task
from treetrain.demo.greenhouse import Greenhouse, Json, Plant, draw_greenhouse, pick


@dataclass(frozen=True)
class Errand:
    """A greenhouse, what is asked there, and what it must look like afterwards.

    Attributes:
        greenhouse: as the agent finds it.
        task: the request, and the routine that does it.
        wanted: the greenhouse when all that was asked is done, and nothing else.
        plant: name of the plant it is about.
        bench: number of the plant's bench.
    """

    greenhouse: Greenhouse
    task: Task
    wanted: Greenhouse
    plant: str
    bench: int


@dataclass(frozen=True)
class Place:
    """What errands are about.

    Attributes:
        bench: number of a bench.
        plant: the plant on it.
        litres: how much water it may get.
    """

    bench: int
    plant: Plant
    litres: int

    @property
    def watered(self) -> Json:
        """Arguments of the call that waters the bench."""
        return {"bench": self.bench, "litres": self.litres}


def draw_errand(seed: str) -> Errand:
    """Draws an errand; pests, of which there is the most to learn, are half of them.

    Args:
        seed: the same seed gives the same errand.

    Returns:
        The errand.
    """
    chance = Random(seed)
    greenhouse = draw_greenhouse(chance)
    bench = 1 + int(chance.random() * 8)
    place = Place(bench, greenhouse.benches[bench].plant, 1 + int(chance.random() * 4))
    return pick(chance, (water, ward_off, ward_off, shelter))(greenhouse, place, chance)


def water(greenhouse: Greenhouse, place: Place, chance: Random) -> Errand:
    """Makes an errand that asks for water.

    Args:
        greenhouse: the state before.
        place: the bench, and how much water it gets.
        chance: source of chance of the errand; not drawn from.

    Returns:
        The errand.
    """

    def routine(trial: Random) -> Routine:
        reads = int(trial.random() * 3)  # before, after, or not at all
        reading = Act(
            f"How is bench {place.bench}?",
            "",
            "read_sensor",
            {"bench": place.bench, "kind": "moisture"},
        )
        if reads == 0:
            yield reading
        yield _water(place, "")
        if reads == 1:
            yield reading
        yield _watered(place, "")

    request = f"Give the {place.plant.name} on bench {place.bench} {place.litres} litres of water."
    return _make_errand(greenhouse, place, request, routine, "water", place.watered)


def ward_off(greenhouse: Greenhouse, place: Place, chance: Random) -> Errand:
    """Makes an errand that asks for the remedy against a pest, or for water where there is none.

    Args:
        greenhouse: changed so that the plant may be sick, and its remedy is in the store.
        place: the bench, and how much water it gets where nothing sits on the plant.
        chance: source of chance of the errand.

    Returns:
        The errand.
    """
    bench, plant = place.bench, place.plant
    sick = greenhouse.benches[bench].sick = chance.random() < 0.6
    greenhouse.stock[plant.remedy] = 1 + int(chance.random() * 3)
    treated: Json = {"bench": bench, "remedy": plant.remedy}

    def routine(trial: Random) -> Routine:
        fact = pick(trial, (f"What sits on bench {bench}?", f"I look at bench {bench}."))
        found = (yield Act(fact, "", "inspect_leaves", {"bench": bench}))["found"]
        if found == "nothing":
            yield _water(place, "Nothing sits there. ")
            yield _watered(place, f"The {plant.name} is clean. ")
            return
        fact = f"Against {found} on bench {bench} helps {plant.remedy}."
        yield Act(fact, "", "treat", treated)
        yield Act(
            f"Bench {bench} is treated.", f"The {plant.name} had {found}. I used {plant.remedy}."
        )

    request = (
        f"Treat what sits on the {plant.name} on bench {bench}; if nothing does, give it "
        f"{place.litres} litres of water."
    )
    call = ("treat", treated) if sick else ("water", place.watered)
    return _make_errand(greenhouse, place, request, routine, *call)


def shelter(greenhouse: Greenhouse, place: Place, chance: Random) -> Errand:
    """Makes an errand that asks for the heated room if frost comes, and for water if not.

    Args:
        greenhouse: changed so that frost may come.
        place: the bench, and how much water it gets where no frost comes.
        chance: source of chance of the errand.

    Returns:
        The errand.
    """
    bench, plant = place.bench, place.plant
    greenhouse.night = -5 + int(chance.random() * 12)
    moved: Json = {"bench": bench, "room": "heated"}

    def routine(trial: Random) -> Routine:
        fact = pick(trial, ("How cold will it be?", "What will the night bring?"))
        weather = yield Act(fact, "", "forecast")
        if weather["frost"]:
            yield Act(f"Frost comes. Bench {bench} goes in.", "", "move_tray", moved)
            yield Act(f"Bench {bench} is in.", f"The {plant.name} is in the heated room.")
            return
        yield _water(place, "No frost. ")
        yield _watered(place, f"The {plant.name} may stay. ")

    request = (
        f"If frost comes, bring in the {plant.name} on bench {bench}; if not, give it "
        f"{place.litres} litres of water."
    )
    call = ("move_tray", moved) if greenhouse.night <= 0 else ("water", place.watered)
    return _make_errand(greenhouse, place, request, routine, *call)


def _water(place: Place, before: str) -> Act:
    fact = f"{before}Bench {place.bench} gets {place.litres} litres."
    return Act(fact, "", "water", place.watered)


def _watered(place: Place, before: str) -> Act:
    said = f"{before}The {place.plant.name} has its {place.litres} litres."
    return Act(f"Bench {place.bench} has its water.", said)


def _make_errand(
    greenhouse: Greenhouse,
    place: Place,
    request: str,
    routine: Callable[[Random], Routine],
    tool: str,
    arguments: Json,
) -> Errand:
    wanted = copy.deepcopy(greenhouse)
    wanted.call(tool, arguments)
    return Errand(greenhouse, Task(request, routine), wanted, place.plant.name, place.bench)
