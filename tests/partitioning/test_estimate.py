from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.partitioning.peaks import measure_peak
from tests.partitioning.round_models import make_memory_model, modes_of

from treetrain.losses.sft import sft_terms
from treetrain.models.prepare import prepare
from treetrain.packing.batch import pack
from treetrain.partitioning.estimate import estimate_memory
from treetrain.partitioning.memory import measure_memory
from treetrain.partitioning.plan import PartitionPlan
from treetrain.partitioning.planning import plan_partitions
from treetrain.partitioning.step import partitioned_step
from treetrain.testing.models import make_tiny_model
from treetrain.tree.build import build_prefix_tree
from treetrain.tree.partition import partition_tree

SEQUENCES = st.lists(st.lists(st.integers(1, 2), min_size=1, max_size=12), min_size=1, max_size=6)


@given(sequences=SEQUENCES, capacity=st.integers(1, 8), accumulating=st.booleans())
def test_the_parts_add_up_and_modes_order_the_peaks(sequences, capacity, accumulating):
    memory = make_memory_model("cuda")
    partitions = partition_tree(build_prefix_tree(sequences), capacity)
    found = {
        mode: estimate_memory(
            partitions, modes_of(partitions, mode), memory, accumulating=accumulating
        )
        for mode in ("keep", "recompute", "offload")
    }
    for estimate in found.values():
        assert sum(estimate.parts.values()) == estimate.peak_bytes
        assert all(size >= 0 for size in estimate.parts.values())
    assert found["recompute"].peak_bytes <= found["keep"].peak_bytes
    assert found["offload"].peak_bytes == found["recompute"].peak_bytes
    assert (found["offload"].host_bytes > 0) == ("offload" in modes_of(partitions, "offload"))
    assert found["keep"].host_bytes == 0


@given(sequences=SEQUENCES, capacity=st.integers(1, 8))
def test_gradients_from_before_stand_beside_those_of_the_step(sequences, capacity):
    memory = make_memory_model(optimizer_working=0)
    partitions = partition_tree(build_prefix_tree(sequences), capacity)
    modes = modes_of(partitions, "keep")
    alone = estimate_memory(partitions, modes, memory)
    beside = estimate_memory(partitions, modes, memory, accumulating=True)
    if alone.partition >= 0:
        assert beside.peak_bytes == alone.peak_bytes + memory.gradients


def test_the_walk_by_hand():
    # [1 2 3] with [4 5] and [6 7] below it: three partitions of a star.
    tree = build_prefix_tree([[1, 2, 3, 4, 5], [1, 2, 3, 6, 7]])
    partitions = partition_tree(tree, 3)
    assert partitions.sizes.tolist() == [3, 2, 2]
    memory = make_memory_model(optimizer_working=0)
    kept = estimate_memory(partitions, ["keep"] * 3, memory)
    # The third one's backward pass: activations of 3 + 2 tokens, gradients given back for 3.
    assert kept.partition == 2
    assert kept.peak_bytes - kept.weights - kept.optimizer == (
        memory.gradients
        + (10 + 3 * 500)
        + (10 + 2 * 500)
        + 3 * 32
        + max(800 + 2 * 16 + 2 * 50, 2 * 20 + 3 * 48)
    )
    # The first one runs again, beside copies of its own keys and values.
    again = estimate_memory(partitions, ["recompute", "keep", "keep"], memory)
    assert again.partition == 0
    assert again.peak_bytes - again.weights - again.optimizer == (
        memory.gradients + (10 + 3 * 500) + 2 * 3 * 32 + 800 + 3 * 16 + 3 * 50
    )


@pytest.mark.parametrize(
    ("modes", "device", "message"),
    [
        (["keep"], "cpu", "one entry per partition, 3, got 1"),
        (["keep", "drop", "keep"], "cpu", r"modes\[1\] must be one of"),
        (["keep", "recompute", "keep"], "cpu", r"modes\[1\] must be 'keep' for a partition that"),
        (["offload", "keep", "keep"], "cpu", r"modes\[0\] must be 'keep' or 'recompute' on cpu"),
    ],
)
def test_modes_that_cannot_be_are_named(modes, device, message):
    partitions = partition_tree(build_prefix_tree([[1, 2, 3, 4, 5], [1, 2, 3, 6, 7]]), 3)
    with pytest.raises(ValueError, match=message):
        estimate_memory(partitions, modes, make_memory_model(device))


@pytest.mark.parametrize("mode", ["keep", "recompute"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_real_partitioned_step_takes_what_was_estimated(mode, dtype):
    model = make_tiny_model(
        "llama", dtype=dtype, hidden_size=64, intermediate_size=160, max_position_embeddings=2048
    )
    prepare(model)
    rng = np.random.default_rng(0)
    draw = lambda count: rng.integers(3, 60, count).tolist()  # noqa: E731
    prefix = draw(250)
    middles = [prefix + draw(150) for _ in range(2)]
    batch = pack([middle + draw(100) for middle in middles for _ in range(2)])
    partitions = partition_tree(batch.tree, 200)
    modes = modes_of(partitions, mode)
    memory = measure_memory(model, optimizer="none")
    estimate = estimate_memory(partitions, modes, memory)
    plan = plan_partitions(batch.tree, memory, capacity=200, mode=mode)
    plan = PartitionPlan(partitions, tuple(modes), estimate, plan.cost)
    terms = sft_terms(batch, "token_mean")
    partitioned_step(model, batch, plan, terms)
    model.zero_grad(set_to_none=True)
    peak = measure_peak(lambda: partitioned_step(model, batch, plan, terms))
    assert estimate.peak_bytes - memory.weights == pytest.approx(peak, rel=0.1)
