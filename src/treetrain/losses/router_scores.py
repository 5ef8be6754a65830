"""What a form of the load-balancing loss makes of a router's logits: scores of the experts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor

from treetrain.errors import UnsupportedModelError
from treetrain.models.routers import RouterOutput

Form = Literal["batch", "micro_batch", "sequence", "deepseek_v3"]


def widen(logits: Tensor, device: torch.device) -> Tensor:
    """Bring logits to where and in what losses are computed.

    Args:
        logits: logits, [T, X].
        device: device of the packed row.

    Returns:
        The logits, float32 or wider.
    """
    return logits.to(device, torch.promote_types(logits.dtype, torch.float32))


def score_experts(layer: RouterOutput, form: Form, device: torch.device) -> Tensor:
    """Compute the scores p of the experts, which add up to 1 for each token.

    Args:
        layer: what the router gave.
        form: the form of the loss.
        device: device of the packed row.

    Returns:
        The scores, [T, X], float32 or wider, with the graph of the logits.
    """
    logits = widen(layer.logits, device)
    if form != "deepseek_v3":
        return logits.softmax(-1)
    scores = logits.sigmoid()
    return scores / scores.sum(-1, keepdim=True)


def choose_largest(layer: RouterOutput, form: Form, device: torch.device) -> Tensor:
    """Find the experts of largest score, as many as the router chooses.

    Args:
        layer: what the router gave.
        form: the form of the loss.
        device: device of the packed row.

    Returns:
        The experts, [T, k] int64.
    """
    with torch.no_grad():
        scores = score_experts(layer, form, device)
        return scores.topk(layer.experts.shape[-1], dim=-1).indices


def check_pool(sizes: Iterable[tuple[int, int]]) -> None:
    """Refuse to make one loss of routers that choose differently.

    Args:
        sizes: experts X and chosen k of each router.

    Raises:
        UnsupportedModelError: they differ.
    """
    if len(distinct := set(sizes)) > 1:
        raise UnsupportedModelError(
            f"routers choose differently ((experts, chosen) are {sorted(distinct)}), so that one "
            "load-balancing loss cannot be made of them; choose form 'deepseek_v3', which takes "
            "each alone"
        )
