"""Policy-gradient losses, computed per sequence on recovered log-probabilities.

A token that several sequences share has one log-probability but each sequence's own advantage,
ratio and clipping, so these are applied to flat edges, after sharing has ended: in `edge_terms`,
or in `linear_terms` where the loss is linear in the log-probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from torch import Tensor, nn

from treetrain.losses.edge_terms import EdgeTerms, OldPolicy, ReferencePolicy
from treetrain.losses.factors import Factors
from treetrain.losses.head_chunks import check_chunking
from treetrain.losses.linear_terms import make_linear_terms
from treetrain.losses.policy_inputs import (
    Objective,
    check_inputs,
    read_advantages,
    read_edges,
    read_old_logprobs,
)
from treetrain.losses.reductions import Reduction, scale_edges, sequence_factors
from treetrain.losses.router_loss import RouterLoss
from treetrain.losses.sft import compute_whole
from treetrain.losses.terms import LossTerms, add_routers
from treetrain.losses.window import LossWindow
from treetrain.packing.batch import Batch
from treetrain.packing.targets import Floats
from treetrain.tree.prefix_tree import Ints


@dataclass(frozen=True, eq=False)
class PolicyLoss:
    """A policy loss and what it was made of.

    Attributes:
        loss: the loss, a scalar with gradients.
        targets: number of trained edges in the batch, each sequence's own counted.
        statistics: unweighted means over the trained edges, without gradients: "logprob"; with a
            ratio "ratio", "clip_fraction" (edges whose gradient the clip removed) and "old_kl"
            (estimate of the KL divergence from the old policy); with a reference "reference_kl";
            with an entropy bonus "entropy". Scalars on the batch's device; none without targets.
            With losses of routers also these, "load_balancing" and "router_z".
    """

    loss: Tensor
    targets: int
    statistics: dict[str, Tensor]


def policy_loss(
    model: nn.Module,
    batch: Batch,
    reduction: Reduction,
    *,
    objective: Objective,
    advantages: Sequence[Any] | None = None,
    old_logprobs: Sequence[Any] | Literal["current", "recorded"] | None = None,
    clip_low: float | None = None,
    clip_high: float | None = None,
    reference_logprobs: Sequence[Any] | None = None,
    kl_coefficient: float | None = None,
    entropy_coefficient: float = 0.0,
    temperature: float = 1.0,
    window: LossWindow | None = None,
    router: RouterLoss | None = None,
    chunk_tokens: int | None = None,
) -> PolicyLoss:
    """Policy-gradient loss of the trained tokens of all sequences.

    With A the advantage of an edge, log p its log-probability and r = p / p_old, its loss is

        plain    -A log p
        ppo      -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)
        grpo     the same, and the KL term is required

    plus `kl_coefficient` x (p_ref / p - log(p_ref / p) - 1) where a reference is given, minus
    `entropy_coefficient` x the entropy of the distribution that predicts it. Weights and reduction
    are those of supervised training.

    Args:
        model: a prepared model.
        batch: the sequences and their weights, on the model's device.
        reduction: as in `sft_loss`; no default.
        objective: "plain", "ppo" or "grpo".
        advantages: for each sequence a number, or one per edge, [max(L - 1, 0)]; None: the samples'
            own.
        old_logprobs: for "ppo" and "grpo", log-probabilities under the policy that sampled, [max(L
            - 1, 0)] for each sequence as `sequence_logprobs` gives them; "recorded": those of
            the samples; "current": the policy that is trained sampled them, so the ratio is 1 and
            only its gradient counts.
        clip_low: for "ppo" and "grpo", how far the ratio may fall below 1.
        clip_high: for "ppo" and "grpo", how far it may rise above 1.
        reference_logprobs: log-probabilities under the reference policy, shaped like
            `old_logprobs`.
        kl_coefficient: weight of the KL term; given together with `reference_logprobs`.
        entropy_coefficient: weight of the entropy bonus.
        temperature: what the logits are divided by; that of sampling.
        window: sums over all batches of one optimiser step, as in `sft_loss`.
        router: losses of the routers, as in `sft_loss`.
        chunk_tokens: as in `sft_loss`.

    Returns:
        The loss and its statistics. Entries of the inputs for edges that are not trained are not
        read and may be anything.

    Raises:
        ValueError: the objective is unknown, lacks an input it needs, or is given one it does not
            use.
    """  # noqa: DOC502 (the checks raise)
    terms = policy_terms(
        batch,
        reduction,
        objective=objective,
        advantages=advantages,
        old_logprobs=old_logprobs,
        clip_low=clip_low,
        clip_high=clip_high,
        reference_logprobs=reference_logprobs,
        kl_coefficient=kl_coefficient,
        entropy_coefficient=entropy_coefficient,
        temperature=temperature,
        window=window,
        router=router,
        chunk_tokens=chunk_tokens,
    )
    result = compute_whole(model, terms)
    return PolicyLoss(result.loss, result.targets, result.statistics)


def policy_terms(
    batch: Batch,
    reduction: Reduction,
    *,
    objective: Objective,
    advantages: Sequence[Any] | None = None,
    old_logprobs: Sequence[Any] | Literal["current", "recorded"] | None = None,
    clip_low: float | None = None,
    clip_high: float | None = None,
    reference_logprobs: Sequence[Any] | None = None,
    kl_coefficient: float | None = None,
    entropy_coefficient: float = 0.0,
    temperature: float = 1.0,
    window: LossWindow | None = None,
    router: RouterLoss | None = None,
    chunk_tokens: int | None = None,
) -> LossTerms:
    """Lay out the terms of a policy-gradient loss, to be evaluated on parts of a batch.

    Args:
        batch: the sequences and their weights.
        reduction: as in `sft_loss`; no default.
        objective: as in `policy_loss`, and so are all that follow.
        advantages: advantages.
        old_logprobs: log-probabilities under the policy that sampled.
        clip_low: how far the ratio may fall below 1.
        clip_high: how far it may rise above 1.
        reference_logprobs: log-probabilities under the reference policy.
        kl_coefficient: weight of the KL term.
        entropy_coefficient: weight of the entropy bonus.
        temperature: what the logits are divided by.
        window: sums over all batches of one optimiser step.
        router: losses of the routers.
        chunk_tokens: predictors whose logits exist at one time.

    Returns:
        The terms; `evaluate` of the whole batch gives `policy_loss`.

    Raises:
        ValueError: as `policy_loss` does.
    """  # noqa: DOC502 (the checks raise)
    check_inputs(
        objective,
        ratio_inputs={"old_logprobs": old_logprobs, "clip_low": clip_low, "clip_high": clip_high},
        kl_inputs={"reference_logprobs": reference_logprobs, "kl_coefficient": kl_coefficient},
        entropy_coefficient=entropy_coefficient,
    )
    check_chunking(temperature, chunk_tokens)
    factors = sequence_factors(batch, reduction, window)
    weights = batch.targets.edge_weights
    trained = np.flatnonzero(weights)
    gains = _spread(batch, trained, read_advantages(batch, advantages, trained))
    if objective == "plain" and reference_logprobs is None and entropy_coefficient == 0:
        tokens = make_linear_terms(
            batch, -gains * weights, factors, temperature=temperature, chunk_tokens=chunk_tokens
        )
        return add_routers(batch, tokens, router, window=window)
    old = reference = None
    if clip_low is not None and clip_high is not None:
        logprobs = None
        if not isinstance(old_logprobs, str) or old_logprobs == "recorded":
            logprobs = _spread(batch, trained, read_old_logprobs(batch, old_logprobs, trained))
        old = OldPolicy(logprobs, clip_low, clip_high)
    if kl_coefficient is not None:
        logprobs = read_edges(batch, "reference_logprobs", reference_logprobs, trained)
        reference = ReferencePolicy(_spread(batch, trained, logprobs), kl_coefficient)
    tokens = EdgeTerms(
        advantages=Factors(batch, gains, "advantages"),
        weights=Factors(batch, scale_edges(batch, weights, factors), "weights"),
        old=old,
        reference=reference,
        entropy_coefficient=entropy_coefficient,
        temperature=temperature,
        chunk_tokens=chunk_tokens,
    )
    return add_routers(batch, tokens, router, window=window)


def _spread(batch: Batch, trained: Ints, values: Floats) -> Floats:
    """Values of trained edges among those of all flat edges, 0 for the others, [E]."""
    edges = np.zeros(len(batch.targets.edge_weights))
    edges[trained] = values
    return edges
