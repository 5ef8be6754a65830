"""Losses of the routers of a batch, evaluated on its parts; a whole batch is its only part.

The forms are defined in `router`. What multiplies a token's scores is known once the choices of the
whole batch are; then each token of a part adds its own share.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from treetrain.errors import UnsupportedModelError, check_type
from treetrain.losses.load_balancing import balancing_factors, window_factors
from treetrain.losses.router_choices import RouterChoices
from treetrain.losses.router_loss import RouterLoss, RouterTerms
from treetrain.losses.router_scores import score_experts, widen
from treetrain.losses.tree_sums import TreeSums, make_tree_sums, weigh_tokens
from treetrain.losses.window import LossWindow, measure_window
from treetrain.models.routers import RouterOutput, Routing
from treetrain.packing.batch import Batch
from treetrain.packing.parts import BatchPart


class BatchRouters:
    """Losses of the routers of a batch; made by `plan_routers`.

    Args:
        batch: the batch.
        router: the losses.
        window: sums over the window that the batch belongs to.
    """

    def __init__(self, batch: Batch, router: RouterLoss, window: LossWindow) -> None:
        self._batch = batch
        self._router = router
        self._window = window
        self.begin()

    def begin(self) -> None:
        """Forget what an earlier step noted, which may have been another model's."""
        self._choices = RouterChoices(self._router.form, self._batch.num_tokens)
        self._factors: dict[str, Tensor] | None = None

    @property
    def needs_choices(self) -> bool:
        """Whether choices of the whole batch decide the loss of each part."""
        balanced = self._router.load_balancing != 0 and self._batch.num_tokens > 0
        return balanced and self._router.window_choices is None

    def note_choices(self, routing: Routing, part: BatchPart) -> None:
        """Note which experts a part's tokens choose.

        Args:
            routing: the record of the part's forward pass, with gradients or without.
            part: the part.
        """
        self._choices.note(routing, part)
        self._factors = None

    def evaluate(self, routing: Routing, part: BatchPart) -> RouterTerms:
        """Compute the share of a part.

        Args:
            routing: the record of the part's forward pass. For the whole batch choices come from
                it too.
            part: the part.

        Returns:
            The losses; those of the parts add up to those of the batch.

        Raises:
            ValueError: the record is of another row, parts are missing in the choices, or
                `window_choices` are not those of the window.
            UnsupportedModelError: routers were computed without gradients, or choose differently
                many experts, which the form pools.
        """  # noqa: DOC503 (the functions below raise ValueError)
        balancing = z = torch.zeros((), device=part.packed.device)
        if self._router.is_zero or self._batch.num_tokens == 0:
            return RouterTerms(balancing, balancing, balancing)
        layers = routing.of(part.packed)
        if routing.lost_gradients:
            raise UnsupportedModelError(
                "reentrant checkpointing computes routers without gradients, which their losses "
                "would lose; call model.gradient_checkpointing_enable({'use_reentrant': False})"
            )
        if part.packed is self._batch.packed:
            self.begin()
            if self.needs_choices:
                self.note_choices(routing, part)
        nodes = part.nodes(self._batch)
        if self._router.load_balancing:
            balancing = self._balance(layers, nodes)
        if self._router.z:
            z = self._sum_squares(layers, nodes)
        loss = self._router.load_balancing * balancing + self._router.z * z
        return RouterTerms(loss, balancing.detach(), z.detach())

    def _balance(self, layers: list[RouterOutput], nodes: Tensor) -> Tensor:
        if self._factors is None:
            self._factors = self._find_factors(layers)
        loss = torch.zeros((), device=nodes.device)
        for layer in layers:
            scores = score_experts(layer, self._router.form, nodes.device)
            loss = loss + weigh_tokens(scores, self._factors[layer.name], nodes)
        return loss

    def _find_factors(self, layers: list[RouterOutput]) -> dict[str, Tensor]:
        if self._router.window_choices is None:
            return balancing_factors(self._choices, self._sums, self._window)
        return window_factors(layers, self._router.window_choices, self._sums, window=self._window)

    def _sum_squares(self, layers: list[RouterOutput], nodes: Tensor) -> Tensor:
        loss = torch.zeros((), device=nodes.device)
        for layer in layers:
            logs = widen(layer.logits, nodes.device).logsumexp(-1, keepdim=True)
            loss = loss + weigh_tokens(logs.square(), self._z_factors, nodes)
        return loss / len(layers)

    @cached_property
    def _sums(self) -> TreeSums:
        return make_tree_sums(self._batch.tree, self._batch.device)

    @cached_property
    def _z_factors(self) -> Tensor:
        """Factor of each node, summed over routers, [N, 1] float64."""
        if self._router.form in ("batch", "micro_batch"):
            return self._sums.path_counts / self._window.tokens
        means = self._sums.sum_over_sequences(1 / self._sums.sequence_lengths)
        return means / self._window.sequences


def plan_routers(batch: Batch, router: RouterLoss, window: LossWindow | None) -> BatchRouters:
    """Check what the losses of the routers of a batch need.

    Args:
        batch: the batch.
        router: the losses.
        window: sums over all batches of one optimiser step; None: the batch is the whole step.

    Returns:
        The losses, to be evaluated.

    Raises:
        ValueError: the batch is no part of the window, or form "batch" lacks the choices of a
            window of several batches.
    """
    check_type("router", router, RouterLoss, "a RouterLoss")
    if window is None:
        window = measure_window([batch])
    check_type("window", window, LossWindow, "None or a window from measure_window(batches)")
    tokens = int(batch.tree.sequence_lengths.sum())
    if window.sequences < batch.num_sequences or window.tokens < tokens:
        raise ValueError(
            f"window must include the batch, got a window of {window.sequences} sequences and "
            f"{window.tokens} tokens for a batch of {batch.num_sequences} and {tokens}; "
            "measure_window takes all batches of a step"
        )
    routers = BatchRouters(batch, router, window)
    if routers.needs_choices and router.form == "batch" and window.tokens != tokens:
        raise ValueError(
            f"window_choices must be given for form 'batch' and a window of several batches "
            f"({window.tokens} flat tokens, {tokens} of them in this batch), got None; pass "
            "measure_choices(model, batches), or choose form 'micro_batch' or 'sequence'"
        )
    return routers
