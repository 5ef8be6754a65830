"""The four kinds of task of the built-in example, each with the routine that does it.

A kind takes the greenhouse, brings it into the state the task is about, and returns what the person
asks together with the routine.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from treetrain.demo.agent import Act, Routine, Task, look_up, read_sensor, think
from treetrain.demo.goals import cured, safe_at_night, unchanged, wet_enough
from treetrain.demo.greenhouse import Greenhouse, Json, pick


def revive_plant(greenhouse: Greenhouse, random: Random) -> Task:
    """Makes a task in which a plant has dried out.

    Args:
        greenhouse: changed so that one bench is dry.
        random: source of chance of the task.

    Returns:
        The task.
    """
    number = 1 + int(random.random() * 8)
    bench = greenhouse.benches[number]
    plant, (low, high) = bench.plant.name, bench.plant.moisture
    bench.moisture = max(3, low - 10 - int(random.random() * 20))

    def routine(trial: Random) -> Routine:
        careful = trial.random() < 0.5
        if trial.random() < 0.25:
            fact = f"Is bench {number} really the {plant}? The list will tell."
            yield Act(think(trial, fact), "", "list_benches")
        if careful:
            yield look_up(trial, plant)
        fact = f"Limp leaves on bench {number} most often mean dry soil."
        reading = yield read_sensor(trial, number, "moisture", fact=fact)
        moisture = number_of(reading, "moisture")
        if not careful:
            yield look_up(trial, plant)
        if trial.random() < 0.4:
            fact = f"Dry soil at {moisture} % is one cause; heat would be another."
            yield read_sensor(trial, number, "temperature", fact=fact)
        while moisture < low:
            litres = max(1, (low - moisture + 7) // 8)
            litres = max(1, litres - 1) if trial.random() < 0.3 else litres
            fact = (
                f"{moisture} % is below the {low} to {high} that {plant} likes. "
                f"{litres} litres make about {moisture + 8 * litres} %."
            )
            order: Json = {"bench": number, "litres": litres}
            yield Act(think(trial, fact), "", "water", order)
            fact = f"After {litres} litres I read the sensor of bench {number} again."
            reading = yield read_sensor(trial, number, "moisture", fact=fact)
            moisture = number_of(reading, "moisture")
        fact = f"Now it is {moisture} %, within {low} to {high}."
        yield Act(
            think(trial, fact),
            pick(
                trial,
                (
                    f"The {plant} on bench {number} was too dry. I watered it; it is at "
                    f"{moisture} % now and should stand up by the evening.",
                    f"Bench {number} is back at {moisture} %. The {plant} had run dry.",
                ),
            ),
        )

    request = f"The {plant} on bench {number} hangs its leaves. Please see to it."
    return Task(request, routine, wet_enough(greenhouse, number), ("revive", plant, number))


def prepare_night(greenhouse: Greenhouse, random: Random) -> Task:
    """Makes a task in which plants must be brought in before a cold night.

    Args:
        greenhouse: changed so that tonight is cold.
        random: source of chance of the task.

    Returns:
        The task.
    """
    greenhouse.night = -3 + int(random.random() * 8)
    first = 1 + int(random.random() * 5)
    numbers = (first, first + 1, first + 3)
    plants = {n: greenhouse.benches[n].plant for n in numbers}

    def routine(trial: Random) -> Routine:
        fact = "How cold will it be? That decides everything."
        weather = yield Act(think(trial, fact), "", "forecast")
        night = number_of(weather, "night_low")
        if trial.random() < 0.3:
            yield Act(think(trial, "I want to see the benches by name."), "", "list_benches")
        order = numbers if trial.random() < 0.7 else tuple(reversed(numbers))
        moved: list[str] = []
        for n in order:
            plant = plants[n]
            page = yield look_up(trial, plant.name)
            coldest = number_of(page, "coldest_night")
            if coldest > night:
                fact = f"{plant.name} bears {coldest} degrees, tonight brings {night}: it goes in."
                place: Json = {"bench": n, "room": "heated"}
                yield Act(think(trial, fact), "", "move_tray", place)
                moved.append(plant.name)
        fact = f"{len(moved)} of 3 had to go in at {night} degrees; the others stay."
        names = " and the ".join(moved)
        said = f"I moved the {names} to the heated room." if moved else "All three can stay."
        yield Act(think(trial, fact), f"Tonight it falls to {night} degrees. {said}")

    listed = ", ".join(str(n) for n in numbers)
    request = f"Make benches {listed} ready for the night. Which of them must come in?"
    about = ("night", greenhouse.night, *((n, plant.name) for n, plant in plants.items()))
    return Task(request, routine, safe_at_night(greenhouse, numbers), about)


def treat_pest(greenhouse: Greenhouse, random: Random) -> Task:
    """Makes a task in which something sits on the leaves.

    Args:
        greenhouse: changed so that one bench is sick.
        random: source of chance of the task.

    Returns:
        The task.
    """
    number = 1 + int(random.random() * 8)
    plant = greenhouse.benches[number].plant
    greenhouse.benches[number].sick = random.random() < 0.8
    greenhouse.stock[plant.remedy] = int(random.random() * 3)

    def routine(trial: Random) -> Routine:
        if trial.random() < 0.4:
            yield look_up(trial, plant.name)
        fact = f"A close look at the leaves of bench {number} shows what sits there."
        picture = yield Act(think(trial, fact), "", "inspect_leaves", {"bench": number})
        found = str(picture["found"])
        if found == "nothing":
            fact = "The leaves are clean, so dry or cold soil may be behind it."
            yield read_sensor(trial, number, "moisture", fact=fact)
            said = f"I found nothing on the leaves of bench {number}. I will look again tomorrow."
            yield Act(think(trial, "Clean leaves, no treatment."), said)
            return
        fact = f"Against {found} the handbook names {plant.remedy}. Is there any?"
        count = yield Act(think(trial, fact), "", "check_stock", {"item": plant.remedy})
        if number_of(count, "count") == 0 and trial.random() < 0.5:
            said = f"It is {found}, and there is no {plant.remedy} in the store. Please get some."
            yield Act(think(trial, "Without the remedy I can only say so."), said)
            return
        fact = f"{found} on {plant.name}: {plant.remedy} is what helps."
        place: Json = {"bench": number, "remedy": plant.remedy}
        done = yield Act(think(trial, fact), "", "treat", place)
        if "error" in done:
            said = f"Bench {number} has {found}, but the {plant.remedy} is used up."
            yield Act(think(trial, "The store was empty after all."), said)
            return
        if trial.random() < 0.7:
            fact = "Did it help? The leaves will show it."
            yield Act(think(trial, fact), "", "inspect_leaves", {"bench": number})
        said = f"The {plant.name} on bench {number} had {found}. I used {plant.remedy}."
        yield Act(think(trial, f"The {found} are dealt with."), said)

    request = f"There are spots on the leaves of bench {number}. What is it?"
    return Task(request, routine, cured(greenhouse, number), ("pest", plant.name, number))


def check_round(greenhouse: Greenhouse, random: Random) -> Task:
    """Makes a task in which several benches are read one after the other.

    Args:
        greenhouse: read only.
        random: source of chance of the task.

    Returns:
        The task.
    """
    first = 1 + int(random.random() * 4)
    numbers = tuple(range(first, first + 4))
    kind = pick(random, ("moisture", "temperature", "light"))

    def routine(trial: Random) -> Routine:
        if trial.random() < 0.3:
            yield Act(think(trial, "The list of benches helps me name them."), "", "list_benches")
        readings: list[tuple[int, int]] = []
        for n in numbers if trial.random() < 0.7 else reversed(numbers):
            fact = f"Bench {n} is next; {len(readings)} of 4 are read."
            answer = yield read_sensor(trial, n, kind, fact=fact)
            readings.append((number_of(answer, kind), n))
        value, bench = min(readings)
        if trial.random() < 0.4:
            fact = f"{value} on bench {bench} is the lowest. Once more, to be sure."
            yield read_sensor(trial, bench, kind, fact=fact)
        said = f"The lowest {kind} is {value}, on bench {bench}."
        yield Act(think(trial, f"The lowest of the four is {value}."), said)

    request = f"Go round benches {first} to {first + 3}: where is the {kind} lowest?"
    return Task(request, routine, unchanged(greenhouse), ("round", kind, first))


def number_of(answer: Json, key: str) -> int:
    """Reads a whole number from a tool's answer.

    Args:
        answer: the answer.
        key: name of the number.

    Returns:
        The number.
    """
    return int(str(answer[key]))


Kind = Callable[[Greenhouse, Random], Task]
KINDS: tuple[Kind, ...] = (revive_plant, prepare_night, treat_pest, check_round)
