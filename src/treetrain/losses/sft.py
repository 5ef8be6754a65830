"""The loss of supervised training, exact on shared tokens.

Losses that need more than a weighted sum of log-probabilities are in `policy`.
"""

from __future__ import annotations

from torch import Tensor, nn

from treetrain.losses.linear_terms import make_linear_terms
from treetrain.losses.part_loss import PartLoss
from treetrain.losses.reductions import Reduction, sequence_factors
from treetrain.losses.router_loss import RouterLoss
from treetrain.losses.terms import LossTerms, add_routers
from treetrain.losses.window import LossWindow
from treetrain.models.prepared import find_prepared
from treetrain.models.score import check_language_model
from treetrain.packing.batch import Batch
from treetrain.packing.parts import whole_batch


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
    terms = sft_terms(batch, reduction, window=window, router=router, chunk_tokens=chunk_tokens)
    return compute_whole(model, terms).loss


def sft_terms(
    batch: Batch,
    reduction: Reduction,
    *,
    window: LossWindow | None = None,
    router: RouterLoss | None = None,
    chunk_tokens: int | None = None,
) -> LossTerms:
    """Lay out the loss terms of supervised training, to be evaluated on parts of a batch.

    Args:
        batch: the sequences and their weights.
        reduction: as in `sft_loss`.
        window: as in `sft_loss`.
        router: as in `sft_loss`.
        chunk_tokens: as in `sft_loss`.

    Returns:
        The terms; `evaluate` of the whole batch gives `sft_loss`.
    """
    factors = sequence_factors(batch, reduction, window)
    tokens = make_linear_terms(
        batch, -batch.targets.edge_weights, factors, chunk_tokens=chunk_tokens
    )
    return add_routers(batch, tokens, router, window=window)


def compute_whole(model: nn.Module, terms: LossTerms) -> PartLoss:
    """Compute loss terms on the whole batch in one forward pass.

    Args:
        model: a prepared model.
        terms: the terms.

    Returns:
        The loss and its statistics.
    """
    batch = terms.batch
    with terms.recording(model) as routing:
        prepared = find_prepared(model)
        check_language_model(model, prepared.head)
        hidden = prepared.hidden_states(batch.packed)
        return terms.evaluate(prepared, hidden, whole_batch(batch), routing=routing)
