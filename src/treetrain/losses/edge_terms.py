"""Policy losses of flat edges: each sequence's own advantage, ratio and clipping of a shared token.

Source: PPO (arXiv:1707.06347, equation 7) for the clipped surrogate, DAPO (arXiv:2503.14476,
section 3.1) for two clip bounds, GRPO (arXiv:2402.03300, equation 4) for the non-negative estimate
of the KL divergence.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from treetrain.losses.factors import Factors
from treetrain.losses.logprobs import part_logprobs
from treetrain.losses.part_loss import PartLoss, find_trained, sum_statistics
from treetrain.models.prepared import PreparedModel
from treetrain.packing.parts import BatchPart
from treetrain.packing.targets import Floats
from treetrain.tree.prefix_tree import Ints


@dataclass(frozen=True, eq=False)
class OldPolicy:
    """The policy that sampled, and how far the ratio to it may go.

    Attributes:
        logprobs: its log-probability of each flat edge, [E]; None: it is the policy that is
            trained.
        clip_low: how far the ratio may fall below 1.
        clip_high: how far it may rise above 1.
    """

    logprobs: Floats | None
    clip_low: float
    clip_high: float


@dataclass(frozen=True, eq=False)
class ReferencePolicy:
    """The policy that training shall stay close to.

    Attributes:
        logprobs: its log-probability of each flat edge, [E].
        coefficient: weight of the KL term.
    """

    logprobs: Floats
    coefficient: float


@dataclass(frozen=True, eq=False)
class EdgeTerms:
    """Losses of the trained edges of a batch.

    Attributes:
        advantages: advantage of each flat edge, [E].
        weights: weight x factor of the reduction of each flat edge, [E].
        old: the policy that sampled; None for the objective without a ratio.
        reference: the reference policy, or None.
        entropy_coefficient: weight of the entropy bonus.
        temperature: what the logits are divided by.
        chunk_tokens: predictors whose logits exist at one time, or None.
    """

    advantages: Factors
    weights: Factors
    old: OldPolicy | None
    reference: ReferencePolicy | None
    entropy_coefficient: float
    temperature: float
    chunk_tokens: int | None

    def evaluate(self, prepared: PreparedModel, hidden: Tensor, part: BatchPart) -> PartLoss:
        """Compute the share of a part.

        Args:
            prepared: the model's handle.
            hidden: hidden states of the part's row, [T, C].
            part: the part.

        Returns:
            The share.
        """
        logprobs, entropies = part_logprobs(
            prepared,
            hidden,
            part,
            temperature=self.temperature,
            chunk_tokens=self.chunk_tokens,
            entropies=self.entropy_coefficient != 0,
        )
        edges, targets = find_trained(part)
        logprob = logprobs.index_select(0, targets)
        self.advantages.check(logprob.dtype)
        self.weights.check(logprob.dtype)
        gain = self.advantages.take(edges, logprob.dtype, logprob.device)
        statistics = {"logprob": logprob}
        if self.old is None:
            losses = -gain * logprob
        else:
            losses, figures = _clip(logprob, gain, self.old, edges=edges)
            statistics |= figures
        if self.reference is not None:
            divergence = _kl_estimate(logprob, _take(self.reference.logprobs, edges, logprob))
            losses = losses + self.reference.coefficient * divergence
            statistics["reference_kl"] = divergence
        if entropies is not None:
            entropy = entropies.index_select(0, targets)
            losses = losses - self.entropy_coefficient * entropy
            statistics["entropy"] = entropy
        weights = self.weights.take(edges, logprob.dtype, logprob.device)
        return PartLoss((losses * weights).sum(), len(edges), sum_statistics(statistics))


def _clip(
    logprob: Tensor, gain: Tensor, old: OldPolicy, *, edges: Ints
) -> tuple[Tensor, dict[str, Tensor]]:
    """The clipped surrogate of each edge, and its statistics."""
    before = logprob.detach() if old.logprobs is None else _take(old.logprobs, edges, logprob)
    log_ratio = logprob - before
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - old.clip_low, 1 + old.clip_high)
    constant = clipped * gain < ratio * gain
    # Where the loss is a constant, a ratio that overflows must not meet a gradient of 0.
    idle = constant | (gain == 0)
    free = log_ratio.masked_fill(idle, 0.0).exp()
    losses = -torch.where(idle, clipped.detach(), free) * gain
    return losses, {
        "ratio": ratio,
        "clip_fraction": constant.to(logprob.dtype),
        "old_kl": _kl_estimate(logprob.detach(), before),
    }


def _kl_estimate(logprobs: Tensor, others: Tensor) -> Tensor:
    """Non-negative estimate of KL(p, other) from a token sampled from p."""
    difference = others - logprobs
    return difference.expm1() - difference


def _take(values: Floats, edges: Ints, like: Tensor) -> Tensor:
    return torch.tensor(values[edges], dtype=like.dtype, device=like.device)
