"""Policy-gradient losses, computed per sequence on recovered log-probabilities.

A token that several sequences share has one log-probability but each sequence's own advantage,
ratio and clipping, so these are applied to flat edges, after sharing has ended.

Source: PPO (arXiv:1707.06347, equation 7) for the clipped surrogate, DAPO (arXiv:2503.14476,
section 3.1) for two clip bounds, GRPO (arXiv:2402.03300, equation 4) for the non-negative estimate
of the KL divergence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from treetrain.losses.logprobs import edge_logprobs
from treetrain.losses.policy_inputs import Objective, check_inputs, read_advantages, read_edges
from treetrain.losses.reductions import Reduction, check_factors, scale_edges, sequence_factors
from treetrain.losses.router import RouterLoss, record_for, router_terms
from treetrain.losses.sft import linear_loss, target_coefficients
from treetrain.losses.window import LossWindow
from treetrain.models.routers import Routing
from treetrain.packing.batch import Batch
from treetrain.packing.targets import Floats


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
    old_logprobs: Sequence[Any] | Literal["current"] | None = None,
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
            - 1, 0)] for each sequence as `sequence_logprobs` gives them; "current": the policy that
            is trained sampled them, so the ratio is 1 and only its gradient counts.
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
    check_inputs(
        objective,
        ratio_inputs={"old_logprobs": old_logprobs, "clip_low": clip_low, "clip_high": clip_high},
        kl_inputs={"reference_logprobs": reference_logprobs, "kl_coefficient": kl_coefficient},
        entropy_coefficient=entropy_coefficient,
    )
    factors = sequence_factors(batch, reduction, window)
    trained = np.flatnonzero(batch.targets.edge_weights)
    advantage = read_advantages(batch, advantages, trained)
    with record_for(model, router) as routing:
        if objective == "plain" and reference_logprobs is None and entropy_coefficient == 0:
            result = _plain_loss(
                model, batch, factors, advantage, temperature=temperature, chunk_tokens=chunk_tokens
            )
            return _add_routers(result, routing, batch, router=router, window=window)
        logprobs, entropies = edge_logprobs(
            model,
            batch,
            temperature=temperature,
            chunk_tokens=chunk_tokens,
            targets="trained",
            entropies=entropy_coefficient != 0,
        )
    places = torch.tensor(trained, device=logprobs.device)
    logprob = logprobs.index_select(0, places)

    def on_device(values: Floats) -> Tensor:
        return torch.tensor(values, dtype=logprob.dtype, device=logprob.device)

    statistics = {"logprob": logprob.detach()}
    advantage_edges = np.zeros(len(batch.targets.edge_weights))
    advantage_edges[trained] = advantage
    check_factors(batch, advantage_edges, logprob.dtype, name="advantages")
    gain = on_device(advantage)
    if objective == "plain":
        losses = -gain * logprob
    else:
        assert clip_low is not None
        assert clip_high is not None
        old = (
            logprob.detach()
            if isinstance(old_logprobs, str)
            else on_device(read_edges(batch, "old_logprobs", old_logprobs, trained))
        )
        log_ratio = logprob - old
        ratio = log_ratio.exp()
        clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
        constant = clipped * gain < ratio * gain
        # Where the loss is a constant, a ratio that overflows must not meet a gradient of 0.
        idle = constant | (gain == 0)
        free = log_ratio.masked_fill(idle, 0.0).exp()
        losses = -torch.where(idle, clipped.detach(), free) * gain
        statistics["ratio"] = ratio.detach()
        statistics["clip_fraction"] = constant.to(logprob.dtype)
        statistics["old_kl"] = _kl_estimate(logprob.detach(), old)
    if reference_logprobs is not None:
        assert kl_coefficient is not None
        reference = on_device(read_edges(batch, "reference_logprobs", reference_logprobs, trained))
        divergence = _kl_estimate(logprob, reference)
        losses = losses + kl_coefficient * divergence
        statistics["reference_kl"] = divergence.detach()
    if entropies is not None:
        entropy = entropies.index_select(0, places)
        losses = losses - entropy_coefficient * entropy
        statistics["entropy"] = entropy.detach()

    edge_factors = scale_edges(batch, batch.targets.edge_weights, factors)
    check_factors(batch, edge_factors, logprob.dtype, name="weights")
    loss = (losses * on_device(edge_factors[trained])).sum()
    result = PolicyLoss(loss, len(trained), _means(statistics))
    return _add_routers(result, routing, batch, router=router, window=window)


def _add_routers(
    result: PolicyLoss,
    routing: Routing | None,
    batch: Batch,
    *,
    router: RouterLoss | None,
    window: LossWindow | None,
) -> PolicyLoss:
    if router is None or routing is None:
        return result
    terms = router_terms(routing, batch, router, window=window)
    figures = {"load_balancing": terms.load_balancing, "router_z": terms.z}
    return PolicyLoss(result.loss + terms.loss, result.targets, result.statistics | figures)


def _plain_loss(
    model: nn.Module,
    batch: Batch,
    factors: Floats,
    advantage: Floats,
    *,
    temperature: float,
    chunk_tokens: int | None,
) -> PolicyLoss:
    """Linear in the log-probabilities, so that the fused head serves it."""
    targets = batch.targets
    trained = np.flatnonzero(targets.edge_weights)
    edges = np.zeros(len(targets.edge_weights))
    edges[trained] = -advantage * targets.edge_weights[trained]
    loss, logprobs = linear_loss(
        model,
        batch,
        target_coefficients(batch, edges, factors),
        temperature=temperature,
        chunk_tokens=chunk_tokens,
    )
    places = torch.tensor(targets.edge_targets[trained], device=logprobs.device)
    return PolicyLoss(loss, len(trained), _means({"logprob": logprobs.index_select(0, places)}))


def _kl_estimate(logprobs: Tensor, others: Tensor) -> Tensor:
    """Non-negative estimate of KL(p, other) from a token sampled from p."""
    difference = others - logprobs
    return difference.expm1() - difference


def _means(values: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.mean() for name, value in values.items() if value.numel()}
