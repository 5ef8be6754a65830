"""Batches cut into random parts, and random samples to make them of."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from treetrain.data.sample import Sample
from treetrain.models.routers import RouterOutput, Routing
from treetrain.packing.batch import Batch
from treetrain.packing.parts import BatchPart
from treetrain.packing.target_parts import cut_targets

TOKENS = st.tuples(st.integers(0, 2), st.sampled_from([0.0, 0.5, 1.0, 2.0]))
SAMPLES = st.lists(
    st.builds(
        lambda row, trajectory, scale, per_token: Sample(
            [token for token, _ in row],
            [weight for _, weight in row],
            trajectory=trajectory,
            advantage=[scale * (place - 1) for place in range(len(row))] if per_token else scale,
        ),
        st.lists(TOKENS, max_size=6),
        st.sampled_from([None, "x", "y"]),
        st.sampled_from([-1.0, 0.0, 0.3, 2.0]),
        st.booleans(),
    ),
    min_size=1,
    max_size=6,
)


def cut_batch(
    batch: Batch, num_parts: int, seed: int, *, untrained: bool = False
) -> list[BatchPart]:
    """Deal the packed tokens to parts at random, each part's tokens in packed order.

    Hidden states are those of the whole tree, so that a part's row needs no tree of its own.
    """
    holders = np.random.default_rng(seed).integers(0, num_parts, batch.num_tokens)
    members = [np.flatnonzero(holders == part) for part in range(num_parts)]
    places = np.zeros(batch.num_tokens, np.int64)
    for held in members:
        places[held] = np.arange(len(held))
    targets = batch.all_targets if untrained else batch.targets
    cut = cut_targets(targets, holders, places, num_parts=num_parts)
    return [
        BatchPart(
            dataclasses.replace(batch.packed, tokens=batch.packed.tokens[:, torch.tensor(held)]),
            held,
            part,
        )
        for held, part in zip(members, cut, strict=True)
    ]


def rows_of(values: Tensor, part: BatchPart) -> Tensor:
    """Rows of a part's tokens among those of the whole tree, with their graph."""
    return values.index_select(0, torch.tensor(part.places))


def routing_of(routing: Routing, part: BatchPart) -> Routing:
    """What the routers gave for a part's tokens."""
    layers = [
        RouterOutput(layer.name, rows_of(layer.logits, part), rows_of(layer.experts, part))
        for layer in routing.layers
    ]
    return Routing(packed=part.packed, layers=layers)
