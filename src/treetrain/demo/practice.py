"""The tasks that the model of the built-in example learns to do, and those it is judged by.

Both are of one kind, a plant that has dried out, and none is of both. Which plant stands on which
bench tells them apart: every plant and every bench occurs in practice, but a third of their pairs
is held out, and so are the readings that go with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice

from treetrain.demo.agent import Task
from treetrain.demo.greenhouse import PLANTS, Greenhouse, Json
from treetrain.demo.tasks import revive_plant
from treetrain.demo.trajectories import draw_task, play_trials

#: The agent is told of no tools: their schemas are most of a prompt, in which so small a model is
#: slow to find the request. It knows them from the trials.
PRACTICE_TOOLS: tuple[Json, ...] = ()
NAMES = [plant.name for plant in PLANTS]


def draw_tasks(seed: int, *, held_out: bool) -> Iterator[tuple[str, Greenhouse, Task]]:
    """Draws tasks without end.

    Args:
        seed: seed of the tasks.
        held_out: whether to draw those that the model is judged by, or those it practises on.

    Yields:
        The seed of the task, the greenhouse as the agent finds it, and the task.
    """
    for number in count():
        own = f"practice/{seed}/{number}"
        greenhouse, task = draw_task(own, revive_plant)
        if is_held_out(task) == held_out:
            yield own, greenhouse, task


def is_held_out(task: Task) -> bool:
    """Says whether a task is of those that the model is judged by.

    Args:
        task: a task of `revive_plant`.

    Returns:
        Whether its plant and its bench are a pair that is held out.
    """
    _, plant, bench = task.about
    return (NAMES.index(str(plant)) + int(str(bench))) % 3 == 0


def make_practice(*, tasks: int, trials: int, seed: int) -> list[Json]:
    """Makes the rows that the model practises on.

    Args:
        tasks: number of tasks.
        trials: trials of each task.
        seed: seed of the tasks.

    Returns:
        One row per trial, as `make_rows` makes them.
    """
    rows: list[Json] = []
    for own, greenhouse, task in islice(draw_tasks(seed, held_out=False), tasks):
        rows += play_trials(
            greenhouse, task, trials=trials, seed=own, group=own, tools=PRACTICE_TOOLS
        )
    return rows


def draw_held_out(tasks: int, *, seed: int) -> list[tuple[Greenhouse, Task]]:
    """Draws the tasks that the model is judged by.

    Args:
        tasks: number of tasks.
        seed: seed of the tasks.

    Returns:
        Greenhouses as the agent finds them, each with its task.
    """
    return [
        (greenhouse, task) for _, greenhouse, task in islice(draw_tasks(seed, held_out=True), tasks)
    ]
