"""Trees that are cut: small cases of faults that were reported in public."""

from __future__ import annotations

import pytest
import torch

from treetrain.data.sample import Sample
from treetrain.losses.sft import sft_terms
from treetrain.models.prepare import prepare
from treetrain.packing.batch import pack
from treetrain.partitioning.step import partitioned_step
from treetrain.testing.models import make_tiny_model
from treetrain.tree.partition import partition_tree
from treetrain.verification.widened import Widened

PREFIX, A, B = [30, 31, 32, 33, 34, 35], [7, 8, 9, 10], [11, 12, 13]


@pytest.mark.parametrize("mode", ["keep", "recompute"])
def test_a_prefix_is_trained_through_what_its_children_read(
    train_alone, assert_same_gradients, mode
):
    """Case 9. Source: huggingface/trl#2669."""
    model = make_tiny_model("llama", dtype=torch.float64)
    # Only what comes after the cut is trained, so that all of the prefix's gradient crosses it.
    weights = [[0.0] * len(PREFIX) + [0.0] + [1.0] * (len(tail) - 1) for tail in (A, B)]
    rows = [PREFIX + tail for tail in (A, B)]
    with Widened():
        loss, expected = train_alone(model, rows, [own[1:] for own in weights])
        prepare(model)
        batch = pack([Sample(row, own) for row, own in zip(rows, weights, strict=True)])
        partitions = partition_tree(batch.tree, len(PREFIX))
        assert partitions.num_partitions >= 2
        step = partitioned_step(model, batch, partitions, sft_terms(batch, "sum"), modes=mode)
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    only_in_prefix = expected["model.embed_tokens.weight"][PREFIX]
    assert only_in_prefix.abs().amax(dim=1).min() > 0
    assert_same_gradients(found, expected, 1e-10)
    assert step.loss.item() == pytest.approx(loss, rel=1e-12)
