from __future__ import annotations

from itertools import islice

from treetrain.demo.practice import PRACTICE_TOOLS, draw_errands, draw_held_out, make_practice


def test_no_plant_on_its_bench_is_of_both_sets() -> None:
    practised = {(e.plant, e.bench) for _, e in islice(draw_errands(0, held_out=False), 500)}
    held_out = {(e.plant, e.bench) for e in draw_held_out(100, seed=0)}
    assert not practised & held_out
    # Every plant and every bench of the held-out errands occurs in practice, in other pairs.
    for place in (0, 1):
        assert {pair[place] for pair in held_out} <= {pair[place] for pair in practised}


def test_no_held_out_request_is_practised() -> None:
    asked = {row["messages"][1]["content"] for row in make_practice(500, seed=0)}
    assert not asked & {errand.task.request for errand in draw_held_out(100, seed=0)}


def test_rows_are_groups_of_their_own_and_tell_of_what_the_actor_is_told_of() -> None:
    rows = make_practice(3, seed=0)
    assert len({row["group"] for row in rows}) == 3
    assert all(row["tools"] == list(PRACTICE_TOOLS) for row in rows)


def test_another_seed_gives_other_errands_and_more_leave_the_first_as_they_were() -> None:
    assert make_practice(4, seed=0) != make_practice(4, seed=1)
    assert make_practice(4, seed=0) == make_practice(6, seed=0)[:4]
