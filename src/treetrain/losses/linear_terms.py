"""Losses linear in the log-probabilities, through the head that makes gradients at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from treetrain.losses.chunked_head import fused_head
from treetrain.losses.factors import Factors
from treetrain.losses.head_chunks import check_chunking
from treetrain.losses.logprobs import part_logprobs
from treetrain.losses.part_loss import PartLoss, find_trained, sum_statistics
from treetrain.losses.reductions import scale_edges
from treetrain.models.prepared import PreparedModel
from treetrain.packing.batch import Batch
from treetrain.packing.parts import BatchPart
from treetrain.packing.targets import Floats


@dataclass(frozen=True, eq=False)
class LinearTerms:
    """Sum of coefficient x log-probability over the distinct targets of a batch.

    Attributes:
        coefficients: one per target, [M].
        temperature: what the logits are divided by.
        chunk_tokens: predictors whose logits exist at one time, or None.
    """

    coefficients: Factors
    temperature: float
    chunk_tokens: int | None

    def evaluate(self, prepared: PreparedModel, hidden: Tensor, part: BatchPart) -> PartLoss:
        """Compute the share of a part.

        Args:
            prepared: the model's handle.
            hidden: hidden states of the part's row, [T, C].
            part: the part.

        Returns:
            The share, with the statistic "logprob".
        """
        wide = torch.promote_types(hidden.dtype, torch.float32)
        self.coefficients.check(wide)
        factors = self.coefficients.take(part.part.places, wide, hidden.device)
        loss, logprobs = self._weigh(prepared, hidden, part, factors=factors)
        edges, targets = find_trained(part)
        sums = sum_statistics({"logprob": logprobs.detach().index_select(0, targets)})
        return PartLoss(loss, len(edges), sums)

    def _weigh(
        self, prepared: PreparedModel, hidden: Tensor, part: BatchPart, *, factors: Tensor
    ) -> tuple[Tensor, Tensor]:
        if hidden.dtype == torch.float16:
            # Gradients made in the forward pass would be made before the loss is scaled, and
            # vanish.
            logprobs, _ = part_logprobs(
                prepared,
                hidden,
                part,
                temperature=self.temperature,
                chunk_tokens=self.chunk_tokens,
            )
            return (logprobs * factors).sum(), logprobs
        return fused_head(
            hidden,
            prepared.head,
            part.part.targets,
            tensors=part.target_tensors,
            coefficients=factors,
            temperature=self.temperature,
            chunk_tokens=self.chunk_tokens,
        )


def make_linear_terms(
    batch: Batch,
    edge_weights: Floats,
    factors: Floats,
    *,
    temperature: float = 1.0,
    chunk_tokens: int | None,
) -> LinearTerms:
    """Sum each target's factors over the sequences that share it.

    Args:
        batch: the batch.
        edge_weights: what the log-probability of each flat edge is multiplied by, [E] float64.
        factors: what the reduction multiplies each sequence by, [S] float64.
        temperature: what the logits are divided by, above 0.
        chunk_tokens: predictors whose logits exist at one time; None: a number that fits the
            vocabulary.

    Returns:
        The terms.
    """
    check_chunking(temperature, chunk_tokens)
    targets = batch.targets
    sums = targets.sum_edges(scale_edges(batch, edge_weights, factors))
    coefficients = Factors(batch, sums, "weights", places=targets.edge_targets)
    return LinearTerms(coefficients, temperature, chunk_tokens)
