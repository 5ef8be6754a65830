"""Loss terms of a batch, laid out on the host once and evaluated on the batch or on its parts.

Terms know no model. Each part of a batch evaluates its own share on its own hidden states, and the
shares add up to the loss of the batch; the whole batch is its only part. `sft` and `policy` make
terms, `linear_terms` and `edge_terms` are the two ways to evaluate those of the tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from treetrain.errors import check_type
from treetrain.losses.part_loss import PartLoss
from treetrain.losses.router import record_for
from treetrain.losses.router_loss import RouterLoss
from treetrain.losses.router_parts import BatchRouters, plan_routers
from treetrain.losses.window import LossWindow
from treetrain.models.prepared import PreparedModel
from treetrain.models.routers import Routing
from treetrain.packing.batch import Batch
from treetrain.packing.parts import BatchPart


class TokenTerms(Protocol):
    """Loss terms of the tokens of a batch."""

    def evaluate(self, prepared: PreparedModel, hidden: Tensor, part: BatchPart) -> PartLoss:
        """Compute the share of a part.

        Args:
            prepared: the model's handle.
            hidden: hidden states of the part's row, [T, C].
            part: the part.

        Returns:
            The share.
        """
        ...


@dataclass(frozen=True, eq=False)
class LossTerms:
    """All loss terms of a batch; made by `sft_terms` and `policy_terms`.

    Attributes:
        batch: the batch.
        tokens: the terms of its tokens.
        router: the losses of the routers as they were asked for.
        routers: their terms; None where they have no loss.

    Example:
        >>> from treetrain.losses.sft import sft_terms
        >>> from treetrain.models.prepare import prepare
        >>> from treetrain.packing.batch import pack
        >>> from treetrain.packing.parts import whole_batch
        >>> from treetrain.testing.models import make_tiny_model
        >>> prepared = prepare(make_tiny_model("llama"))
        >>> batch = pack([[1, 2, 3, 4], [1, 2, 5]])
        >>> terms = sft_terms(batch, "token_mean")
        >>> hidden = prepared.hidden_states(batch.packed)
        >>> result = terms.evaluate(prepared, hidden, whole_batch(batch))
        >>> result.targets, list(result.statistics)
        (5, ['logprob'])
    """

    batch: Batch
    tokens: TokenTerms
    router: RouterLoss | None = None
    routers: BatchRouters | None = None

    @property
    def needs_choices(self) -> bool:
        """Whether routers must have run on every part before the first part is evaluated.

        A forward pass of each part then comes before, without gradients, and `note_choices` takes
        its record. The whole batch as its only part needs none.
        """
        return self.routers is not None and self.routers.needs_choices

    def begin(self) -> None:
        """Begin a step over parts: forget the choices of experts of an earlier one."""
        if self.routers is not None:
            self.routers.begin()

    @contextmanager
    def recording(self, model: nn.Module) -> Iterator[Routing | None]:
        """Record routing where the terms need it, as `record_routing` does.

        Args:
            model: a prepared model.

        Yields:
            The record of the latest forward pass, or None where the routers have no loss.
        """
        with record_for(model, self.router) as routing:
            yield routing

    def note_choices(self, routing: Routing | None, part: BatchPart) -> None:
        """Note which experts the tokens of a part choose.

        Args:
            routing: the record of the part's forward pass.
            part: the part.

        Raises:
            ValueError: the terms need no choices, or the record is of another row.
        """
        if self.routers is None or not self.needs_choices:
            raise ValueError(
                "note_choices must be called for terms whose needs_choices is true, got terms "
                "that need none; leave the pass that records choices out"
            )
        self.routers.note_choices(_check_routing(routing), part)

    def evaluate(
        self,
        prepared: PreparedModel,
        hidden: Tensor,
        part: BatchPart,
        *,
        routing: Routing | None = None,
    ) -> PartLoss:
        """Compute the share of a part, in time and memory of its own size.

        Gradients of the head may be made here, so that `backward` can run once per call.

        Args:
            prepared: the model's handle.
            hidden: hidden states of the part's row, as `prepared.hidden_states(part.packed)` gives
                them, [T, C].
            part: the part, whose targets are cut from `batch.targets`.
            routing: the record of that forward pass, where routers have a loss.

        Returns:
            The share. That of tokens is 0 without a gradient where the part has no target and is
            not the whole batch.

        Raises:
            ValueError: the loss's dtype cannot hold the factors of the terms, the record is of
                another row or missing, or choices of parts are.
        """  # noqa: DOC502 (the functions below raise)
        if len(part.part.targets) or part.packed is self.batch.packed:
            result = self.tokens.evaluate(prepared, hidden, part)
        else:
            wide = torch.promote_types(hidden.dtype, torch.float32)
            result = PartLoss(torch.zeros((), dtype=wide, device=hidden.device), 0, {})
        if self.routers is None:
            return result
        terms = self.routers.evaluate(_check_routing(routing), part)
        figures = {"load_balancing": terms.load_balancing, "router_z": terms.z}
        return PartLoss(result.loss + terms.loss, result.targets, result.sums, figures)


def add_routers(
    batch: Batch, tokens: TokenTerms, router: RouterLoss | None, *, window: LossWindow | None
) -> LossTerms:
    """Put the terms of the tokens and those of the routers together.

    Args:
        batch: the batch.
        tokens: the terms of its tokens.
        router: losses of the routers, or None.
        window: sums over all batches of one optimiser step; None: the batch is the whole step.

    Returns:
        All terms.
    """
    if router is not None:
        check_type("router", router, RouterLoss, "None or a RouterLoss")
    if router is None or router.is_zero:
        return LossTerms(batch, tokens, router)
    return LossTerms(batch, tokens, router, plan_routers(batch, router, window))


def _check_routing(routing: Routing | None) -> Routing:
    if routing is None:
        raise ValueError(
            "routing must be the record of the part's forward pass, got None; compute it inside "
            "`with terms.recording(model) as routing`"
        )
    return routing
