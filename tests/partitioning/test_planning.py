from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.partitioning.round_models import make_memory_model, modes_of

from treetrain.errors import CapacityError
from treetrain.partitioning.estimate import estimate_memory
from treetrain.partitioning.planning import GOOD_CAPACITY, plan_partitions
from treetrain.tree.build import build_prefix_tree
from treetrain.tree.metrics import ModelShape

SHAPES = st.sampled_from(["chain", "star", "comb", "deep", "forest"])


def make_tree(shape, scale):
    rng = np.random.default_rng(scale)
    draw = lambda count: rng.integers(1, 1000, count).tolist()  # noqa: E731
    if shape == "chain":
        return build_prefix_tree([draw(6 * scale)])
    if shape == "star":
        prefix = draw(scale)
        return build_prefix_tree([prefix + draw(scale) for _ in range(5)])
    if shape == "forest":
        return build_prefix_tree([draw(scale) for _ in range(6)])
    if shape == "comb":
        path = draw(6 * scale)
        return build_prefix_tree([path[: scale * n] + draw(scale // 2 + 1) for n in range(1, 7)])
    middles = [draw(scale)]
    for _ in range(2):
        middles = [middle + draw(scale) for middle in middles for _ in range(2)]
    return build_prefix_tree(middles)


def least_memory(tree, memory_model, **others):
    with pytest.raises(CapacityError) as told:
        plan_partitions(tree, memory_model, memory=1, **others)
    return int(re.search(r"at least (\d+) bytes", str(told.value))[1])


@given(
    shape=SHAPES,
    scale=st.integers(2, 900),
    mode=st.sampled_from(["auto", "keep", "recompute"]),
    more=st.floats(1, 4),
    accumulating=st.booleans(),
)
def test_a_plan_fits_and_an_error_names_what_works(shape, scale, mode, more, accumulating):
    tree, model = make_tree(shape, scale), make_memory_model()
    given_ = {"mode": mode, "accumulating": accumulating}
    least = least_memory(tree, model, **given_)
    for memory in (least, int(least * more)):
        plan = plan_partitions(tree, model, memory=memory, **given_)
        assert plan.estimate.peak_bytes <= memory
        assert plan.estimate == estimate_memory(
            plan.partitions, plan.modes, model, accumulating=accumulating
        )
        assert plan.partitions.tree.num_tokens == tree.num_tokens
    with pytest.raises(CapacityError, match=f"at least {least} bytes"):
        plan_partitions(tree, model, memory=least - 1, **given_)


@given(shape=SHAPES, scale=st.integers(2, 900), part=st.floats(0, 1))
def test_with_a_capacity_too_the_error_names_what_works(shape, scale, part):
    tree, model = make_tree(shape, scale), make_memory_model()
    capacity = 1 + int(part * tree.num_tokens)
    if capacity < tree.num_tokens / 64:
        return
    least = least_memory(tree, model, capacity=capacity)
    plan = plan_partitions(tree, model, memory=least, capacity=capacity)
    assert plan.partitions.sizes.max() <= capacity
    assert plan.estimate.peak_bytes <= least
    with pytest.raises(CapacityError, match="name a smaller capacity or none"):
        plan_partitions(tree, model, memory=least - 1, capacity=capacity)


def test_what_fits_is_not_divided():
    tree, model = make_tree("star", 1000), make_memory_model()
    undivided = plan_partitions(tree, model, capacity=tree.num_tokens)
    assert not undivided.is_divided
    plan = plan_partitions(tree, model, memory=undivided.estimate.peak_bytes)
    assert not plan.is_divided
    assert plan.cost.relative == 1
    below = plan_partitions(tree, model, memory=undivided.estimate.peak_bytes - 1)
    assert below.is_divided


def test_keeping_at_a_good_capacity_comes_first_and_at_the_largest_that_was_tried():
    tree, model = make_tree("star", 4000), make_memory_model()
    at_2000 = plan_partitions(tree, model, capacity=2000)
    plan = plan_partitions(tree, model, memory=at_2000.estimate.peak_bytes)
    assert set(plan.modes) == {"keep"}
    assert plan.partitions.capacity >= 2000 * 0.9
    assert plan.estimate.peak_bytes <= at_2000.estimate.peak_bytes


def test_computing_again_at_a_good_capacity_comes_before_keeping_at_a_tiny_one():
    tree = make_tree("chain", 2000)
    model = make_memory_model()
    # A chain is kept as a whole whatever the capacity, so that only its head becomes smaller.
    memory = plan_partitions(tree, model, capacity=GOOD_CAPACITY).estimate.peak_bytes // 2
    plan = plan_partitions(tree, model, memory=memory)
    assert plan.partitions.capacity >= GOOD_CAPACITY
    assert "recompute" in plan.modes
    assert plan.cost.recomputed_tokens > 0


def test_tiny_partitions_are_the_last_resort():
    tree, model = make_tree("chain", 400), make_memory_model()
    least_good = plan_partitions(tree, model, capacity=GOOD_CAPACITY, mode="recompute")
    plan = plan_partitions(tree, model, memory=least_good.estimate.peak_bytes - 1)
    assert plan.partitions.capacity < GOOD_CAPACITY


def test_only_what_does_not_fit_is_computed_again():
    tree, model = make_tree("deep", 3000), make_memory_model()
    kept = plan_partitions(tree, model, capacity=1500, mode="keep")
    again = plan_partitions(tree, model, capacity=1500, mode="recompute")
    low, high = again.estimate.peak_bytes, kept.estimate.peak_bytes
    assert low < high
    between = plan_partitions(tree, model, capacity=1500, memory=(low + high) // 2)
    assert 0 < between.cost.recomputed_tokens < again.cost.recomputed_tokens
    # Nothing that was given up would fit.
    for place, mode in enumerate(between.modes):
        if mode == "recompute":
            modes = [*between.modes[:place], "keep", *between.modes[place + 1 :]]
            more = estimate_memory(between.partitions, modes, model)
            assert more.peak_bytes > (low + high) // 2


def test_work_is_counted_per_token_computed_again():
    tree, model = make_tree("chain", 1000), make_memory_model()
    plan = plan_partitions(tree, model, capacity=1000, mode="recompute")
    sizes = plan.partitions.sizes
    again = [place for place, mode in enumerate(plan.modes) if mode == "recompute"]
    assert plan.cost.recomputed_tokens == sizes[again].sum()
    starts = np.cumsum(sizes) - sizes
    depths = np.concatenate(
        [np.arange(starts[place], starts[place] + sizes[place]) + 1 for place in again]
    )
    width = 2 * 2 * 4
    every = np.arange(tree.num_tokens) + 1
    extra = (2 * 1000 + 4 * width * depths).sum() / (6 * 1000 + 14 * width * every).sum()
    assert plan.cost.relative == pytest.approx(1 + extra)
    checkpointing = make_memory_model(checkpointing=True)
    assert (
        plan_partitions(tree, checkpointing, capacity=1000, mode="recompute").cost.relative
        < plan.cost.relative
    )


@pytest.mark.parametrize(("parameters", "mode"), [(10**3, "recompute"), (10**8, "offload")])
def test_off_the_host_the_cheaper_of_moving_and_computing_again_is_taken(parameters, mode):
    shape = ModelShape(parameters=parameters, layers=2, heads=2, head_size=4)
    tree, model = make_tree("chain", 1000), make_memory_model("cuda", shape=shape)
    least = plan_partitions(tree, model, capacity=1000, mode=mode).estimate.peak_bytes
    plan = plan_partitions(tree, model, memory=least, capacity=1000)
    assert set(plan.modes) == {"keep", mode}
    assert (plan.cost.moved_bytes > 0) == (mode == "offload")
    assert (plan.estimate.host_bytes > 0) == (mode == "offload")
    assert (plan.cost.recomputed_tokens > 0) == (mode == "recompute")


def test_a_named_mode_is_that_of_all_inner_partitions():
    tree, model = make_tree("deep", 900), make_memory_model("cuda")
    for mode in ("keep", "recompute", "offload"):
        plan = plan_partitions(tree, model, capacity=500, mode=mode)
        assert list(plan.modes) == modes_of(plan.partitions, mode)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, ValueError, "memory or capacity must be given"),
        ({"memory": 0}, CapacityError, "memory must be at least 1 byte, got 0"),
        ({"capacity": 0}, CapacityError, "capacity must be at least 1 token, got 0"),
        ({"memory": 1.5}, TypeError, "memory must be an integer"),
        ({"memory": 10**9, "mode": "drop"}, ValueError, "mode must be one of"),
        ({"memory": 10**9, "mode": "offload"}, ValueError, "on cpu, whose memory is the host's"),
    ],
)
def test_wrong_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        plan_partitions(make_tree("star", 10), make_memory_model(), **arguments)


def test_an_empty_tree_has_a_plan():
    plan = plan_partitions(build_prefix_tree([[]]), make_memory_model(), memory=10**9)
    assert plan.cost.relative == 1
    assert plan.estimate.peak_bytes <= 10**9
