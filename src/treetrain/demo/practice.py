"""The errands that the model of the built-in example learns from, and those it is judged by.

None is of both. Which plant stands on which bench tells them apart: every plant and every bench
occurs in practice, but a third of their pairs is held out.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice

from treetrain.demo.errands import Errand, draw_errand
from treetrain.demo.greenhouse import PLANTS, Json
from treetrain.demo.trajectories import play_trials

#: The agent is told of no tools: their schemas are four fifths of a prompt, in which so small a
#: model is slow to find the request. It knows them from the trials.
PRACTICE_TOOLS: tuple[Json, ...] = ()
NAMES = [plant.name for plant in PLANTS]


def draw_errands(seed: int, *, held_out: bool) -> Iterator[tuple[str, Errand]]:
    """Draws errands without end.

    Args:
        seed: seed of the errands.
        held_out: whether to draw those that the model is judged by, or those it practises on.

    Yields:
        The seed of the errand, and the errand.
    """
    for number in count():
        own = f"errand/{seed}/{number}"
        errand = draw_errand(own)
        if is_held_out(errand) == held_out:
            yield own, errand


def is_held_out(errand: Errand) -> bool:
    """Says whether an errand is of those that the model is judged by.

    Args:
        errand: the errand.

    Returns:
        Whether its plant and its bench are a pair that is held out.
    """
    return (NAMES.index(errand.plant) + errand.bench) % 3 == 0


def make_practice(errands: int, *, seed: int) -> list[Json]:
    """Makes the rows that the model practises on, one trial of each errand.

    Args:
        errands: number of errands.
        seed: seed of the errands.

    Returns:
        One row per errand, as `make_rows` makes them; each errand is a group.
    """
    return [
        row
        for own, errand in islice(draw_errands(seed, held_out=False), errands)
        for row in play_trials(
            errand.greenhouse, errand.task, trials=1, seed=own, group=own, tools=PRACTICE_TOOLS
        )
    ]


def draw_held_out(errands: int, *, seed: int) -> list[Errand]:
    """Draws the errands that the model is judged by.

    Args:
        errands: number of errands.
        seed: seed of the errands.

    Returns:
        The errands.
    """
    return [errand for _, errand in islice(draw_errands(seed, held_out=True), errands)]
