"""The load-balancing loss as a weighted sum over the packed tokens, each token computed once.

The forms are defined in `router`. How often experts are chosen has no gradient, so that each form
is linear in the scores p: what multiplies them is made per node and expert from sums over paths.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor, nn

from treetrain.errors import UnsupportedModelError, check_type
from treetrain.losses.tree_sums import TreeSums, make_tree_sums
from treetrain.losses.window import LossWindow
from treetrain.models.prepared import find_prepared
from treetrain.models.routers import RouterOutput, record_routing
from treetrain.packing.batch import Batch

Form = Literal["batch", "micro_batch", "sequence", "deepseek_v3"]


def load_balancing_loss(
    layers: list[RouterOutput],
    sums: TreeSums,
    form: Form,
    *,
    window: LossWindow,
    window_choices: Tensor | None,
) -> Tensor:
    """Compute the load-balancing loss.

    Args:
        layers: what each router gave.
        sums: sums of their tree.
        form: the form.
        window: sums over the window.
        window_choices: for "batch", the choices of the window, [X]; None: those of the tree.

    Returns:
        The loss, a scalar with gradients.

    Raises:
        ValueError: `window_choices` is needed, or is not that of the window.
        UnsupportedModelError: the form pools routers that choose differently.
    """  # noqa: DOC502 (the functions below raise)
    loss = torch.zeros((), device=sums.device)
    if form == "deepseek_v3":
        for layer in layers:
            scores = widen(layer.logits, sums).sigmoid()
            scores = scores / scores.sum(-1, keepdim=True)
            counts = sums.count_choices(_largest(scores, layer), scores.shape[-1])
            factors = _sequence_factors(counts, sums, window) / layer.experts.shape[-1]
            loss = loss + scores.shape[-1] * sums.weigh(scores, factors)
        return loss
    _check_pool(layers)
    probabilities = [widen(layer.logits, sums).softmax(-1) for layer in layers]
    width = probabilities[0].shape[-1]
    counts = torch.zeros(len(sums.path_counts), width, dtype=torch.float64, device=sums.device)
    for layer, scores in zip(layers, probabilities, strict=True):
        counts += sums.count_choices(_largest(scores, layer), width)
    if form == "sequence":
        factors = _sequence_factors(counts, sums, window)
    else:
        tokens = int(sums.sequence_lengths.sum())
        chosen = (sums.path_counts * counts).sum(0)
        if form == "batch":
            places = len(layers) * layers[0].experts.shape[-1]
            chosen = _window_choices(chosen, window_choices, tokens, window=window, places=places)
            tokens = window.tokens
        factors = sums.path_counts * chosen / (tokens * window.tokens)
    for scores in probabilities:
        loss = loss + sums.weigh(scores, factors)
    return loss * width / len(layers) ** 2


def count_choices(layer: RouterOutput, experts: Tensor, sums: TreeSums) -> Tensor:
    """Count how often flat tokens have each expert, by node.

    Args:
        layer: what the router gave.
        experts: experts of each packed token, [T, k] int64.
        sums: sums of the tree.

    Returns:
        The counts, each token once for each of its sequences, [N, X] float64.
    """
    return sums.path_counts * sums.count_choices(experts, layer.logits.shape[-1])


def widen(logits: Tensor, sums: TreeSums) -> Tensor:
    """Bring logits to where and in what losses are computed.

    Args:
        logits: logits, [T, X].
        sums: sums of the tree.

    Returns:
        The logits, float32 or wider.
    """
    return logits.to(sums.device, torch.promote_types(logits.dtype, torch.float32))


def measure_choices(model: nn.Module, batches: Iterable[Batch]) -> Tensor:
    """Count for a whole window what form "batch" needs to know before its first batch.

    The load-balancing loss of a window is no sum over its batches: how often an expert is chosen in
    all of them is a factor of each. One more forward pass of each batch, without gradients.

    Args:
        model: a prepared model.
        batches: every batch of the window, on the model's device.

    Returns:
        How often all routers and flat tokens have each expert among the k of largest probability,
        [X] float64. Those of several processes add.

    Raises:
        ValueError: there is no batch with tokens.
        UnsupportedModelError: the model's routers cannot be recorded, or choose differently.
    """  # noqa: DOC503 (the functions below raise UnsupportedModelError)
    check_type("batches", batches, Iterable, "a list of batches; put a single one into a list")
    total: Tensor | None = None
    for place, batch in enumerate(batches):
        check_type(f"batches[{place}]", batch, Batch, "a Batch from pack(samples)")
        if batch.num_tokens == 0:
            continue
        with torch.no_grad(), record_routing(model) as routing:
            find_prepared(model).hidden_states(batch.packed)
        layers = routing.of(batch.packed)
        _check_pool(layers)
        sums = make_tree_sums(batch.tree, batch.device)
        for layer in layers:
            scores = widen(layer.logits, sums).softmax(-1)
            chosen = count_choices(layer, _largest(scores, layer), sums).sum(0)
            total = chosen if total is None else total + chosen
    if total is None:
        raise ValueError("batches must hold at least one token, got none")
    return total


def _sequence_factors(counts: Tensor, sums: TreeSums, window: LossWindow) -> Tensor:
    """Mean over sequences of counts over squared length, for the sequences of each node, [N, X]."""
    own = sums.sum_along_paths(counts) / sums.sequence_lengths**2
    return sums.sum_over_sequences(own) / window.sequences


def _window_choices(
    own: Tensor, given: Tensor | None, tokens: int, *, window: LossWindow, places: int
) -> Tensor:
    """Find how often the window's tokens have each expert, [X]."""
    if given is None:
        if window.tokens != tokens:
            raise ValueError(
                f"window_choices must be given for form 'batch' and a window of several batches "
                f"({window.tokens} flat tokens, {tokens} of them in this batch), got None; pass "
                "measure_choices(model, batches), or choose form 'micro_batch' or 'sequence'"
            )
        return own
    given = given.to(own)
    expected = window.tokens * places
    if given.shape != own.shape or int(given.sum()) != expected:
        raise ValueError(
            f"window_choices must be {expected} choices among {len(own)} experts, those of the "
            f"{window.tokens} flat tokens of the window, got {given.sum():.0f} of shape "
            f"{list(given.shape)}; measure_choices(model, batches) takes all batches of a step"
        )
    return given


def _check_pool(layers: list[RouterOutput]) -> None:
    sizes = {(layer.logits.shape[-1], layer.experts.shape[-1]) for layer in layers}
    if len(sizes) > 1:
        raise UnsupportedModelError(
            f"routers choose differently ((experts, chosen) are {sorted(sizes)}), so that one "
            "load-balancing loss cannot be made of them; choose form 'deepseek_v3', which takes "
            "each alone"
        )


def _largest(scores: Tensor, layer: RouterOutput) -> Tensor:
    return scores.detach().topk(layer.experts.shape[-1], dim=-1).indices
