"""Tasks that the model of the built-in example is not trained on, and is judged by."""

from __future__ import annotations

from itertools import cycle

from treetrain.demo.agent import Task
from treetrain.demo.greenhouse import Greenhouse
from treetrain.demo.tasks import KINDS
from treetrain.demo.trajectories import draw_task

TRIES = 10_000


def draw_held_out(count: int, *, trained: int, seed: int) -> list[tuple[Greenhouse, Task]]:
    """Draws tasks about plants on benches that no training task is about.

    Tasks in which nothing has to be changed are left out: whoever does nothing would solve them.

    Args:
        count: number of tasks.
        trained: number of training tasks, as `make_rows` draws them.
        seed: seed of the training tasks, and of these.

    Returns:
        Greenhouses as the agent finds them, each with its task; kinds in turn.

    Raises:
        ValueError: there are not as many tasks beside the training tasks.
    """
    kinds = len(KINDS)
    known = {
        draw_task(f"greenhouse/{seed}/{number}", KINDS[number % kinds])[1].about
        for number in range(trained)
    }
    found: list[tuple[Greenhouse, Task]] = []
    for number, kind in zip(range(TRIES), cycle(KINDS), strict=False):
        if len(found) == count:
            return found
        greenhouse, task = draw_task(f"greenhouse/held out/{seed}/{number}", kind)
        if task.about not in known and not task.goal(greenhouse):
            known.add(task.about)
            found.append((greenhouse, task))
    raise ValueError(f"count must be at most {len(found)} beside {trained} tasks, got {count}")
