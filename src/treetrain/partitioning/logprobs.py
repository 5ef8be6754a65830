"""Log-probabilities and hidden states of a tree cut into partitions, without gradients."""

from __future__ import annotations

from typing import get_args

import numpy as np
import torch
from torch import Tensor, nn

from treetrain.errors import check_type
from treetrain.losses.logprobs import Which, part_logprobs
from treetrain.models.prepared import PreparedModel, find_prepared
from treetrain.models.score import check_language_model
from treetrain.packing.batch import Batch
from treetrain.packing.parts import cut_batch
from treetrain.packing.recover import recover_edges, split_edges
from treetrain.partitioning.passes import Passes
from treetrain.partitioning.plan import PartitionPlan
from treetrain.partitioning.step import find_parts, read_plan
from treetrain.tree.partition import Partitions


def partitioned_logprobs(
    model: nn.Module,
    batch: Batch,
    plan: PartitionPlan | Partitions,
    *,
    temperature: float = 1.0,
    chunk_tokens: int | None = None,
    targets: Which = "all",
) -> list[Tensor]:
    """Log-probability of each token of each sequence, with one path of keys and values in memory.

    What `sequence_logprobs` gives, without gradients, for trees whose forward pass does not fit:
    old and reference log-probabilities of policy training.

    Args:
        model: a prepared model.
        batch: the sequences, on the model's device.
        plan: how the batch's tree is cut; its modes play no part here.
        temperature: what the logits are divided by, above 0.
        chunk_tokens: as in `sequence_logprobs`.
        targets: as in `sequence_logprobs`.

    Returns:
        One tensor per sequence in input order, [max(L - 1, 0)], in nats, float32 or wider.

    Raises:
        ValueError: the plan is that of another batch, or `targets` is unknown.

    Example:
        >>> from treetrain.models.prepare import prepare
        >>> from treetrain.packing.batch import pack
        >>> from treetrain.testing.models import make_tiny_model
        >>> from treetrain.tree.partition import partition_tree
        >>> model, batch = make_tiny_model("llama"), pack([[1, 2, 3, 4], [1, 2, 5, 6, 7]])
        >>> handle = prepare(model)
        >>> logprobs = partitioned_logprobs(model, batch, partition_tree(batch.tree, 3))
        >>> [len(own) for own in logprobs]
        [3, 4]
    """
    check_type("batch", batch, Batch, "a Batch from pack(samples)")
    if targets not in get_args(Which):
        raise ValueError(f"targets must be 'all' or 'trained', got {targets!r}")
    prepared = find_prepared(model)
    check_language_model(model, prepared.head)
    partitions, _ = read_plan(plan)
    every = targets == "all"
    chosen = batch.all_targets if every else batch.targets
    tensors = batch.all_target_tensors if every else batch.target_tensors
    # Parts of the trained targets are those of a step, and are kept.
    parts = cut_batch(batch, partitions, targets=chosen) if every else find_parts(batch, partitions)
    found: list[tuple[Tensor, Tensor]] = []

    def visit(part: int, hidden: Tensor) -> None:
        own = parts[part]
        logprobs, _ = part_logprobs(
            prepared, hidden, own, temperature=temperature, chunk_tokens=chunk_tokens
        )
        found.append((torch.tensor(own.part.places, device=logprobs.device), logprobs))

    passes = Passes(prepared, parts, partitions.parents.tolist())
    passes.run_forward(visit)
    wide = torch.promote_types(prepared.model.dtype, torch.float32)
    values = torch.zeros(len(chosen), dtype=found[0][1].dtype if found else wide).to(batch.device)
    for places, logprobs in found:
        values[places] = logprobs
    return split_edges(recover_edges(values, chosen, tensors), chosen)


def partitioned_hidden_states(
    prepared: PreparedModel, batch: Batch, plan: PartitionPlan | Partitions
) -> Tensor:
    """Hidden states of every packed token, without gradients, computed partition by partition.

    Args:
        prepared: handle of the model.
        batch: the sequences, on the model's device.
        plan: how the batch's tree is cut.

    Returns:
        Hidden states as the head receives them, [T, C], packed order of the batch.
    """
    partitions, _ = read_plan(plan)
    parts = find_parts(batch, partitions)
    found: list[Tensor] = []
    passes = Passes(prepared, parts, partitions.parents.tolist())
    passes.run_forward(lambda part, hidden: found.append(hidden))
    if not found:
        return prepared.hidden_states(batch.packed)
    order = np.argsort(np.concatenate([part.places for part in parts]))
    return torch.cat(found)[torch.from_numpy(order).to(batch.device)]
