"""Log-probabilities of targets through a model's head, a chunk of predictors at a time.

Logits of all predictors never exist together, neither forward nor backward: the backward pass
computes each chunk's logits again and turns them into their own gradient in place. `fused_head` is
for losses that are linear in the log-probabilities: it makes the gradients during the forward pass
and saves that second computation.

Source: Liger Kernel (arXiv:2410.10989) for gradients made in the forward pass of a chunked loss,
Cut Your Losses (arXiv:2411.09009) for logits that are consumed where they are made.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from treetrain.attention.once import differentiable_once
from treetrain.losses.head_chunks import (
    Chunk,
    ChunkWork,
    HeadLike,
    cut_chunks,
    plan_chunks,
    sum_rows,
    trainable,
)
from treetrain.losses.head_gradients import HeadGradients, autocast_region, name_storage
from treetrain.packing.targets import Targets, TargetTensors


def head_logprobs(
    hidden: Tensor,
    head: HeadLike,
    targets: Targets,
    *,
    tensors: TargetTensors,
    temperature: float = 1.0,
    chunk_tokens: int | None = None,
    entropies: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Log-probability of each target, and on request the entropy at each distinct predictor.

    Differentiable once with respect to the hidden states and the head's parameters.

    Args:
        hidden: hidden states of the packed row, [T, C].
        head: the model's head.
        targets: the targets.
        tensors: the same targets on the device of `hidden`.
        temperature: what the logits are divided by, above 0.
        chunk_tokens: predictors per chunk; None: as many as make logits of 64 MiB, on a device
            other than the CPU 512 MiB.
        entropies: whether to compute entropies.

    Returns:
        Log-probabilities [M] in nats, and entropies [P] in nats or None; in the dtype of the
        logits.
    """
    chosen = hidden.index_select(0, tensors.distinct_predictors)
    work = plan_chunks(
        chosen,
        head,
        targets,
        tensors=tensors,
        temperature=temperature,
        chunk_tokens=chunk_tokens,
    )
    logprobs, entropy = _HeadLogprobs.apply(work, entropies, chosen, *trainable(head))
    return logprobs, entropy if entropies else None


def fused_head(
    hidden: Tensor,
    head: HeadLike,
    targets: Targets,
    *,
    tensors: TargetTensors,
    coefficients: Tensor,
    temperature: float = 1.0,
    chunk_tokens: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Sum of coefficient x log-probability over the targets, gradients made on the way.

    The gradients of hidden states and parameters are ready when this returns; the backward pass
    scales them and hands its buffers over, so it can run once. Where no gradient is wanted none is
    made.

    Args:
        hidden: hidden states of the packed row, [T, C].
        head: the model's head.
        targets: the targets.
        tensors: the same targets on the device of `hidden`.
        coefficients: what each target's log-probability is multiplied by, [M]; constants.
        temperature: what the logits are divided by, above 0.
        chunk_tokens: predictors per chunk, as in `head_logprobs`.

    Returns:
        The sum, a scalar, and the log-probabilities [M] in nats, which carry no gradient.

    Raises:
        ValueError: there is not one coefficient per target.
    """
    if coefficients.shape != tensors.tokens.shape:
        raise ValueError(
            f"coefficients must have one entry per target, [{len(targets)}], got shape "
            f"{tuple(coefficients.shape)}"
        )
    chosen = hidden.index_select(0, tensors.distinct_predictors)
    work = plan_chunks(
        chosen,
        head,
        targets,
        tensors=tensors,
        temperature=temperature,
        chunk_tokens=chunk_tokens,
    )
    parameters = trainable(head)
    if torch.is_grad_enabled() and (chosen.requires_grad or parameters):
        return _FusedHead.apply(work, coefficients, chosen[:0].clone(), chosen, *parameters)
    logprobs, _ = _HeadLogprobs.apply(work, False, chosen)
    return (logprobs * coefficients.to(logprobs.dtype)).sum(), logprobs


class _HeadLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, work: ChunkWork, entropies: bool, hidden: Tensor, *parameters: Tensor
    ) -> tuple[Tensor, Tensor]:
        count = len(hidden)
        logprobs = hidden.new_empty(len(work.targets), dtype=work.dtype)
        maxima, sums = hidden.new_empty(2, count, dtype=work.dtype)
        entropy = hidden.new_empty(count if entropies else 0, dtype=work.dtype)
        for chunk in cut_chunks(work, hidden):
            with autocast_region(hidden.device, work.autocast):
                logits = work.head(chunk.hidden)
            if name_storage(logits) == name_storage(hidden) or logits._is_view():
                logits = logits.clone()
            logprobs[chunk.targets], maxima[chunk.predictors], sums[chunk.predictors] = (
                _exponentiate_(logits, chunk, work.temperature)
            )
            if entropies:
                logits.div_(sums[chunk.predictors, None])
                entropy[chunk.predictors] = torch.special.entr(logits, out=logits).sum(-1)
            del logits  # before the next chunk's are made
        ctx.work, ctx.entropies = work, entropies
        ctx.save_for_backward(hidden, maxima, sums, entropy, *parameters)
        if not entropies:
            ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        work: ChunkWork = ctx.work
        hidden, maxima, sums, entropy, *parameters = ctx.saved_tensors
        logprob_grads, entropy_grads = grads
        collected = HeadGradients(parameters, hidden.device, work.autocast)
        hidden_grad = torch.empty_like(hidden)
        for chunk in cut_chunks(work, hidden):
            rows = chunk.predictors
            local, logits, gradient = collected.compute_logits(work.head, chunk.hidden)
            scaled = gradient.div_(work.temperature).sub_(maxima[rows, None])
            chunk_grads = logprob_grads[chunk.targets]
            if ctx.entropies:
                scaled.sub_(sums[rows, None].log())
                share = sum_rows(chunk, chunk_grads)
                _entropy_gradient_(scaled, share, entropy[rows], entropy_grads[rows])
            else:
                scaled.exp_().mul_((sum_rows(chunk, chunk_grads) / -sums[rows])[:, None])
            scaled.index_put_((chunk.rows, chunk.tokens), chunk_grads, accumulate=True)
            hidden_grad[rows] = collected.collect(local, logits, scaled.div_(work.temperature))
            del local, logits, gradient, scaled  # before the next chunk's are made
        return None, None, hidden_grad, *collected.hand_over()


class _FusedHead(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        work: ChunkWork,
        coefficients: Tensor,
        empty: Tensor,
        hidden: Tensor,
        *parameters: Tensor,
    ) -> tuple[Tensor, Tensor]:
        coefficients = coefficients.to(work.dtype)
        logprobs = hidden.new_empty(len(work.targets), dtype=work.dtype)
        collected = HeadGradients(parameters, hidden.device, work.autocast)
        hidden_grad = torch.empty_like(hidden)
        for chunk in cut_chunks(work, hidden):
            local, logits, gradient = collected.compute_logits(work.head, chunk.hidden)
            logprobs[chunk.targets], _, sums = _exponentiate_(gradient, chunk, work.temperature)
            shares = coefficients[chunk.targets] / work.temperature
            gradient.mul_((sum_rows(chunk, shares) / -sums)[:, None])
            gradient.index_put_((chunk.rows, chunk.tokens), shares, accumulate=True)
            hidden_grad[chunk.predictors] = collected.collect(local, logits, gradient)
            del local, logits, gradient  # before the next chunk's are made
        ctx.gradients = hidden_grad, collected
        ctx.save_for_backward(empty, *parameters)  # read where second derivatives are refused
        ctx.mark_non_differentiable(logprobs)
        return (logprobs * coefficients).sum(), logprobs

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError(
                "backward must run once through a fused loss, got a second call; its gradients "
                "were made in the forward pass and are handed over. Compute the loss again, or use "
                "sequence_logprobs"
            )
        hidden_grad, collected = ctx.gradients
        ctx.gradients = None
        return None, None, None, hidden_grad.mul_(grads[0]), *collected.hand_over(grads[0])


def _exponentiate_(
    logits: Tensor, chunk: Chunk, temperature: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Turn logits into exp(logits / temperature - maximum); give log p, maximum and sum."""
    if temperature != 1:
        logits.div_(temperature)
    maxima = logits.amax(-1)
    picked = logits[chunk.rows, chunk.tokens] - maxima[chunk.rows]
    sums = logits.sub_(maxima[:, None]).exp_().sum(-1)
    return picked - sums.log()[chunk.rows], maxima, sums


def _entropy_gradient_(logprobs: Tensor, share: Tensor, entropy: Tensor, grads: Tensor) -> None:
    """Turn log-probabilities [n, V] into -p (share + grad (log p + entropy)), in place."""
    constant = share + grads * entropy
    # A logit of minus infinity has p = 0 and would make 0 x infinity; so has one of -1000.
    logprobs.clamp_(min=-1000.0)
    # By eighths, because the factor needs memory of its own.
    eighths = (values.tensor_split(8) for values in (logprobs, grads, constant))
    for part, grad, rest in zip(*eighths, strict=True):
        factor = part * -grad[:, None] - rest[:, None]
        part.exp_().mul_(factor)
