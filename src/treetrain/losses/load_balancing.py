"""The load-balancing loss as a weighted sum over the packed tokens, each token computed once.

The forms are defined in `router`. How often experts are chosen has no gradient, so that each form
is linear in the scores p: what multiplies them is made per node and expert from sums over paths,
once for a batch, and serves each of its parts.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from treetrain.errors import check_type
from treetrain.losses.router_choices import RouterChoices, count_window_choices
from treetrain.losses.router_scores import check_pool
from treetrain.losses.tree_sums import TreeSums, make_tree_sums
from treetrain.losses.window import LossWindow
from treetrain.models.prepared import find_prepared
from treetrain.models.routers import RouterOutput, record_routing
from treetrain.packing.batch import Batch
from treetrain.packing.parts import whole_batch


def balancing_factors(
    choices: RouterChoices, sums: TreeSums, window: LossWindow
) -> dict[str, Tensor]:
    """Compute what multiplies the scores where the choices of the batch decide it.

    Args:
        choices: the choices of the whole batch.
        sums: sums of its tree.
        window: sums over the window; for form "batch" the batch alone.

    Returns:
        Factors of each node and expert, [N, X] float64, by name of the router.

    Raises:
        ValueError: parts of the batch are missing in the choices.
        UnsupportedModelError: the form pools routers that choose differently.
    """  # noqa: DOC502, DOC503 (the functions below raise)
    if choices.form == "deepseek_v3":
        return {
            name: _sequence_factors(choices.count(name, sums), sums, window) * (width / chosen)
            for name, (width, chosen) in zip(choices.experts, choices.sizes, strict=True)
        }
    if choices.form == "sequence":
        factors = _sequence_factors(choices.count_all(sums), sums, window)
    else:
        tokens = int(sums.sequence_lengths.sum())
        chosen = count_window_choices(choices, sums)
        factors = sums.path_counts * chosen / (tokens * window.tokens)
    scale = factors.shape[-1] / len(choices.experts) ** 2
    return dict.fromkeys(choices.experts, factors * scale)


def window_factors(
    layers: list[RouterOutput], given: Tensor, sums: TreeSums, *, window: LossWindow
) -> dict[str, Tensor]:
    """Compute what multiplies the scores in form "batch" where the window's choices are known.

    Args:
        layers: what each router gave for any row of the batch.
        given: the choices of the window, [X].
        sums: sums of the batch's tree.
        window: sums over the window.

    Returns:
        Factors of each node and expert, [N, X] float64, by name of the router.

    Raises:
        ValueError: the choices are not those of the window.
        UnsupportedModelError: routers choose differently.
    """  # noqa: DOC503 (the check raises UnsupportedModelError)
    sizes = [(layer.logits.shape[-1], layer.experts.shape[-1]) for layer in layers]
    check_pool(sizes)
    width, chosen = sizes[0]
    given = given.to(sums.path_counts)
    expected = window.tokens * len(layers) * chosen
    if given.shape != (width,) or int(given.sum()) != expected:
        raise ValueError(
            f"window_choices must be {expected} choices among {width} experts, those of the "
            f"{window.tokens} flat tokens of the window, got {given.sum():.0f} of shape "
            f"{list(given.shape)}; measure_choices(model, batches) takes all batches of a step"
        )
    factors = sums.path_counts * given / window.tokens**2 * (width / len(layers) ** 2)
    return dict.fromkeys((layer.name for layer in layers), factors)


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
        choices = RouterChoices("batch", batch.num_tokens)
        choices.note(routing, whole_batch(batch))
        chosen = count_window_choices(choices, make_tree_sums(batch.tree, batch.device))
        total = chosen if total is None else total + chosen
    if total is None:
        raise ValueError("batches must hold at least one token, got none")
    return total


def _sequence_factors(counts: Tensor, sums: TreeSums, window: LossWindow) -> Tensor:
    """Mean over sequences of counts over squared length, for the sequences of each node, [N, X]."""
    own = sums.sum_along_paths(counts) / sums.sequence_lengths**2
    return sums.sum_over_sequences(own) / window.sequences
