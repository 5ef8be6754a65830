"""The loss on sequences that are not trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import nn

from treetrain.losses.reductions import Reduction, scale_edges, sequence_factors
from treetrain.losses.window import measure_window
from treetrain.packing.batch import Batch
from treetrain.training.objective import row_logprobs
from treetrain.tree.partition import Partitions


def evaluate_loss(
    model: nn.Module,
    batches: Sequence[Batch],
    reduction: Reduction,
    *,
    partitions: Mapping[Batch, Partitions],
) -> float:
    """Compute the supervised loss of rows without training on them.

    Args:
        model: the prepared model; its mode (train or eval) is as before afterwards.
        batches: the rows; all of them are one window.
        reduction: reduction of the loss.
        partitions: how the trees of some rows are cut.

    Returns:
        Weighted negative log-likelihood under the reduction, nats.
    """
    window = measure_window(batches)
    was_training = model.training
    model.eval()
    loss = 0.0
    try:
        for batch in batches:
            found = row_logprobs(model, batch, partitions.get(batch))
            logprobs = np.concatenate([own.double().cpu().numpy() for own in found])
            factors = sequence_factors(batch, reduction, window)
            weights = scale_edges(batch, batch.targets.edge_weights, factors)
            # Weights of 0 count nothing, whatever their log-probability.
            trained = weights != 0
            loss -= float(logprobs[trained] @ weights[trained])
    finally:
        model.train(was_training)
    return loss
