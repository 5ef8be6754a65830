from __future__ import annotations

import numpy as np
import pytest
import torch

from treetrain.data.sample import Sample
from treetrain.losses.factors import Factors
from treetrain.packing.batch import pack

BATCH = pack([[1, 2, 3], Sample([1, 2, 4], [0, 1, 3], source="data:2")])


def test_some_are_taken_in_any_order_and_dtype():
    factors = Factors(BATCH, np.array([1.0, 2.0, 3.0, 4.0]), "weights")
    taken = factors.take(np.array([3, 0]), torch.float32, torch.device("cpu"))
    assert torch.equal(taken, torch.tensor([4.0, 1.0]))


@pytest.mark.parametrize("value", [1e39, 1e-46, np.inf, np.nan])
def test_the_owner_of_what_a_dtype_cannot_hold_is_named(value):
    factors = Factors(BATCH, np.array([0.0, 0.0, 0.0, value]), "advantages")
    with pytest.raises(ValueError, match=r"advantages must stay .* of samples\[1\] \(data:2\)"):
        factors.check(torch.float32)
    if np.isfinite(value):
        factors.check(torch.float64)


def test_of_the_sequences_that_share_a_target_the_one_that_weighs_most_is_named():
    targets = BATCH.targets
    shared = int(np.bincount(targets.edge_targets).argmax())
    values = np.where(np.arange(len(targets)) == shared, 1e39, 1.0)
    weights = np.array([1.0, 1.0, 2.0, 1.0])
    assert targets.edge_targets[[0, 2]].tolist() == [shared] * 2
    batch = pack([[1, 2, 3], Sample([1, 2, 4], [0, *weights[2:]])])
    factors = Factors(batch, values, "weights", places=batch.targets.edge_targets)
    with pytest.raises(ValueError, match=r"of samples\[1\]"):
        factors.check(torch.float32)
    Factors(batch, 0 * values, "weights", places=batch.targets.edge_targets).check(torch.float32)
