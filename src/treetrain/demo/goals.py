"""What a task of the built-in example asks of the greenhouse, judged by its state alone.

A goal looks at the greenhouse when the agent has stopped: what was asked for must be so, and all
that nobody asked for must be as it was. What the agent says is not read.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

from treetrain.demo.greenhouse import Greenhouse

Goal = Callable[[Greenhouse], bool]


def wet_enough(greenhouse: Greenhouse, number: int) -> Goal:
    """A bench's moisture lies within what its plant likes.

    Args:
        greenhouse: its state when the task is given.
        number: number of the bench.

    Returns:
        The goal.
    """
    low, high = greenhouse.benches[number].plant.moisture
    wanted = copy.deepcopy(greenhouse)

    def reached(after: Greenhouse) -> bool:
        moisture = after.benches[number].moisture
        wanted.benches[number].moisture = moisture
        return low <= moisture <= high and after == wanted

    return reached


def safe_at_night(greenhouse: Greenhouse, numbers: Sequence[int]) -> Goal:
    """Of the named benches those stand in the heated room that would not bear the night.

    Args:
        greenhouse: its state when the task is given, tonight's weather included.
        numbers: numbers of the benches.

    Returns:
        The goal.
    """
    wanted = copy.deepcopy(greenhouse)
    for number in numbers:
        bench = wanted.benches[number]
        bench.room = "heated" if bench.plant.min_temperature > wanted.night else bench.room
    return lambda after: after == wanted


def cured(greenhouse: Greenhouse, number: int) -> Goal:
    """A sick bench got one unit of its plant's remedy, if there is any; a healthy one got none.

    Args:
        greenhouse: its state when the task is given.
        number: number of the bench.

    Returns:
        The goal.
    """
    wanted = copy.deepcopy(greenhouse)
    bench = wanted.benches[number]
    remedy = bench.plant.remedy
    if bench.sick and wanted.stock.get(remedy, 0):
        bench.sick = False
        wanted.stock[remedy] -= 1
    return lambda after: after == wanted


def unchanged(greenhouse: Greenhouse) -> Goal:
    """Nothing is to be changed.

    Args:
        greenhouse: its state when the task is given.

    Returns:
        The goal.
    """
    wanted = copy.deepcopy(greenhouse)
    return lambda after: after == wanted
