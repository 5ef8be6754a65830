"""Runs of a model without values: what lives in a step, in its head, in the optimiser's step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from treetrain.losses.chunked_head import fused_head
from treetrain.models.valueless import ValuelessModel
from treetrain.packing.batch import Batch, pack
from treetrain.partitioning.live_bytes import LiveBytes


@dataclass(frozen=True)
class StepBytes:
    """What a step of some tokens was seen to hold; bytes.

    Attributes:
        tokens: tokens of the tree.
        forward: most in a forward pass without gradients.
        saved: kept after a forward pass.
        peaks: most in the forward pass, then in the backward pass until each parameter has its
            gradient.
        made: gradients of parameters that were there at the beginning of each stretch.
        width: size of hidden states.
    """

    tokens: int
    forward: int
    saved: int
    peaks: Sequence[int]
    made: Sequence[int]
    width: int


def run_step(model: ValuelessModel, batch: Batch) -> StepBytes:
    """Run a step forward and backward.

    Args:
        model: the model; its trainable parameters have gradients.
        batch: the tree.

    Returns:
        What lived.
    """
    prepared = model.prepared
    inner = prepared.model
    parameters = list(inner.parameters())
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    tensors, targets = batch.target_tensors, batch.targets
    coefficients = torch.ones(len(targets), device=model.device)
    known = [*parameters, *inner.buffers(), *grads]
    known += [batch.packed.tokens, batch.packed.depth_positions, batch.packed.subtree_ends]
    with LiveBytes([*known, coefficients]) as live:
        with torch.no_grad():
            _run_decoder(model, batch)
        forward = live.take_peak()
        hidden = _run_decoder(model, batch)
        saved, peaks, made = live.live, [live.take_peak()], [0, 0]

        def note(parameter: Tensor) -> None:
            # Its gradient has just been added; until then it counted among what lives.
            peaks.append(live.take_peak(leaving=size_of(parameter)))
            made.append(made[-1] + size_of(parameter))

        watched = [parameter for parameter in parameters if parameter.requires_grad]
        hooks = [value.register_post_accumulate_grad_hook(note) for value in watched]
        loss = fused_head(
            hidden, prepared.head, targets, tensors=tensors, coefficients=coefficients
        )[0]
        live.take_peak()  # the head has a measurement of its own
        # A partition's hidden states live until its backward pass is done.
        loss.backward()
        width = hidden.shape[-1]
        del hidden
        peaks.append(live.take_peak())
        for hook in hooks:
            hook.remove()
    return StepBytes(batch.num_tokens, forward, saved, peaks, made, width)


def _run_decoder(model: ValuelessModel, batch: Batch) -> Tensor:
    prepared = model.prepared
    # Checks before a call compare values, of which there are none here.
    return prepared.before_head(prepared._run_decoder(batch.packed, None))


def run_head(model: ValuelessModel, count: int, width: int) -> int:
    """Run the head on some predictors.

    Args:
        model: the model.
        count: number of predictors.
        width: size of hidden states.

    Returns:
        The most that lived, bytes.
    """
    inner, head = model.prepared.model, model.prepared.head
    with model.running():
        batch = pack([[0] * (count + 1)]).to(model.device)
        tensors = batch.target_tensors
        coefficients = torch.ones(count, device=model.device)
        hidden = torch.zeros(count + 1, width, dtype=inner.dtype, device=model.device)
        hidden.requires_grad_()
        with LiveBytes([hidden, coefficients, *head.parameters]) as live:
            fused_head(hidden, head, batch.targets, tensors=tensors, coefficients=coefficients)
    return live.take_peak()


def run_adamw(trainable: Sequence[Tensor], *, host: bool) -> tuple[int, int]:
    """Run AdamW's step.

    Args:
        trainable: the parameters.
        host: whether they are on the CPU.

    Returns:
        Bytes of the states, and what the step holds besides.
    """
    if not trainable:
        return 0, 0
    twins = [nn.Parameter(torch.empty_like(value, device="meta")) for value in trainable]
    for twin in twins:
        twin.grad = torch.empty_like(twin)
    # Off the CPU torch updates all parameters together.
    adamw = torch.optim.AdamW(twins, foreach=not host)
    with LiveBytes([*twins, *(twin.grad for twin in twins if twin.grad is not None)]) as live:
        adamw.step()
        states = live.live
        live.take_peak()
        adamw.step()
        return states, live.take_peak() - states


def size_of(tensor: Tensor) -> int:
    """Count the bytes of a tensor, also of one without values.

    Args:
        tensor: the tensor.

    Returns:
        Bytes.
    """
    return tensor.numel() * tensor.element_size()


@contextmanager
def with_gradients(parameters: Sequence[Tensor]) -> Iterator[None]:
    """Give parameters gradients for a while, as they have them from the partition before.

    Args:
        parameters: the parameters.

    Yields:
        Nothing.
    """
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    yield
    for parameter in parameters:
        parameter.grad = None
