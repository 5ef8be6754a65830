from __future__ import annotations

from itertools import islice

from treetrain.demo.practice import (
    PRACTICE_TOOLS,
    draw_held_out,
    draw_tasks,
    is_held_out,
    make_practice,
)


def test_no_plant_on_its_bench_is_of_both_sets() -> None:
    practised = {t.about for _, _, t in islice(draw_tasks(0, held_out=False), 200)}
    held_out = {task.about for _, task in draw_held_out(40, seed=0)}
    assert not practised & held_out
    assert all(is_held_out(task) for _, task in draw_held_out(40, seed=0))
    # Every plant and every bench of the held-out tasks occurs in practice, in other pairs.
    for place in (1, 2):
        assert {about[place] for about in held_out} <= {about[place] for about in practised}


def test_no_held_out_request_is_practised() -> None:
    asked = {row["messages"][1]["content"] for row in make_practice(tasks=100, trials=1, seed=0)}
    assert not asked & {task.request for _, task in draw_held_out(40, seed=0)}


def test_doing_nothing_solves_no_held_out_task() -> None:
    assert not any(task.goal(greenhouse) for greenhouse, task in draw_held_out(40, seed=0))


def test_rows_name_their_task_and_tell_of_what_the_actor_is_told_of() -> None:
    rows = make_practice(tasks=3, trials=2, seed=0)
    assert len({row["group"] for row in rows}) == 3
    assert len({row["trajectory_id"] for row in rows}) == 6
    assert all(row["tools"] == list(PRACTICE_TOOLS) for row in rows)


def test_another_seed_gives_other_tasks() -> None:
    assert make_practice(tasks=2, trials=1, seed=0) != make_practice(tasks=2, trials=1, seed=1)
    assert make_practice(tasks=2, trials=1, seed=0) == make_practice(tasks=3, trials=1, seed=0)[:2]
