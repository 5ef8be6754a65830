"""The loss of supervised training, exact on shared tokens.

Losses that need more than a weighted sum of log-probabilities are in `policy`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from treetrain.losses.chunked_head import fused_head, head_logprobs
from treetrain.losses.reductions import Reduction, check_factors, scale_edges, sequence_factors
from treetrain.losses.router import RouterLoss, record_for, router_terms
from treetrain.losses.window import LossWindow
from treetrain.models.prepared import find_prepared
from treetrain.models.score import check_language_model
from treetrain.packing.batch import Batch
from treetrain.packing.targets import Floats


def sft_loss(
    model: nn.Module,
    batch: Batch,
    reduction: Reduction,
    *,
    window: LossWindow | None = None,
    router: RouterLoss | None = None,
    chunk_tokens: int | None = None,
) -> Tensor:
    """Weighted negative log-likelihood of the trained tokens of all sequences.

    Loss and gradients are those of each sequence alone. Gradients of the head are made in the
    forward pass, so `backward` can run once per call.

    Args:
        model: a prepared model.
        batch: the sequences and their weights, on the model's device.
        reduction: "path_mean", "sequence_mean", "token_mean", "trajectory_mean", "sum", or a number
            to divide the sum by; `treetrain.losses.reductions` defines them.
        window: sums over all batches whose gradients one optimiser step adds up, from
            `measure_window`; None: this batch is the whole step.
        router: losses of the routers of a mixture of experts, which are added; None for none, which
            a model with `config.output_router_logits` is not trained with.
        chunk_tokens: predictors whose logits exist at one time; None: a number that fits the
            vocabulary.

    Returns:
        The loss, a scalar in nats, float32 or wider. With a window, the losses of its batches add
        up to the loss of the step.

    Example:
        >>> from treetrain.models.prepare import prepare
        >>> from treetrain.packing.batch import pack
        >>> from treetrain.testing.models import make_tiny_model
        >>> model = make_tiny_model("llama")
        >>> handle = prepare(model)
        >>> sft_loss(model, pack([[1, 2, 3, 4], [1, 2, 5]]), "token_mean").backward()
    """
    factors = sequence_factors(batch, reduction, window)
    coefficients = target_coefficients(batch, -batch.targets.edge_weights, factors)
    with record_for(model, router) as routing:
        loss = linear_loss(model, batch, coefficients, chunk_tokens=chunk_tokens)[0]
    if router is None or routing is None:
        return loss
    return loss + router_terms(routing, batch, router, window=window).loss


def target_coefficients(batch: Batch, edge_weights: Floats, factors: Floats) -> Floats:
    """Sum each target's factors over the sequences that share it.

    Args:
        batch: the batch.
        edge_weights: one number per flat edge, [E].
        factors: one number per sequence, [S].

    Returns:
        Sum of edge weight x factor over each target's edges, [M] float64.
    """
    return batch.targets.sum_edges(scale_edges(batch, edge_weights, factors))


def linear_loss(
    model: nn.Module,
    batch: Batch,
    coefficients: Floats,
    *,
    temperature: float = 1.0,
    chunk_tokens: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Sum of coefficient x log-probability over the distinct targets, through the fused head.

    Args:
        model: a prepared model.
        batch: the batch, on the model's device.
        coefficients: one number per target, [M] float64.
        temperature: what the logits are divided by, above 0.
        chunk_tokens: as in `sft_loss`.

    Returns:
        The sum, a scalar, and the log-probabilities [M], which carry no gradient.
    """
    prepared = find_prepared(model)
    check_language_model(model, prepared.head)
    hidden = prepared.hidden_states(batch.packed)
    wide = torch.promote_types(hidden.dtype, torch.float32)
    check_factors(batch, coefficients, wide, name="weights", places=batch.targets.edge_targets)
    factors = torch.tensor(coefficients, dtype=wide, device=hidden.device)
    if hidden.dtype == torch.float16:
        # Gradients made in the forward pass would be made before the loss is scaled, and vanish.
        logprobs, _ = head_logprobs(
            hidden,
            prepared.head,
            batch.targets,
            tensors=batch.target_tensors,
            temperature=temperature,
            chunk_tokens=chunk_tokens,
        )
        return (logprobs * factors).sum(), logprobs.detach()
    return fused_head(
        hidden,
        prepared.head,
        batch.targets,
        tensors=batch.target_tensors,
        coefficients=factors,
        temperature=temperature,
        chunk_tokens=chunk_tokens,
    )
