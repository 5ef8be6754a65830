from __future__ import annotations

import pytest

from treetrain.training.schedule import learning_rate_factor


def factors(kind, steps=11, **options):
    return [learning_rate_factor(step, steps, kind, **options) for step in range(steps)]


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_the_rate_falls_from_one_to_its_final_factor(kind):
    found = factors(kind, final_factor=0.1)
    assert found[0] == 1.0
    assert found[-1] == pytest.approx(0.1)
    assert found == sorted(found, reverse=True)
    assert found[5] == pytest.approx(0.55)


def test_a_constant_rate_stays():
    assert factors("constant", warmup_steps=2)[2:] == [1.0] * 9


def test_the_rate_rises_from_above_zero_to_one():
    found = factors("linear", warmup_steps=3)
    assert found[:4] == [0.25, 0.5, 0.75, 1.0]


def test_a_run_of_one_step_has_the_whole_rate():
    assert factors("cosine", steps=1) == [1.0]
    assert factors("linear", steps=1, warmup_steps=1) == [0.5]
