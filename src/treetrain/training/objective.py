"""The loss of a run as its configuration names it, laid out for the rows of each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from treetrain.losses.load_balancing import measure_choices
from treetrain.losses.logprobs import sequence_logprobs
from treetrain.losses.policy import policy_terms
from treetrain.losses.reductions import Reduction
from treetrain.losses.router import record_for
from treetrain.losses.router_loss import RouterLoss
from treetrain.losses.sft import sft_terms
from treetrain.losses.terms import LossTerms
from treetrain.losses.window import LossWindow
from treetrain.packing.batch import Batch
from treetrain.partitioning.logprobs import partitioned_logprobs
from treetrain.training.config import TrainConfig
from treetrain.training.settings import LossConfig, RouterConfig
from treetrain.tree.partition import Partitions

SUPERVISED = LossConfig()  # pyright: ignore[reportCallIssue]


@dataclass(frozen=True, eq=False)
class Objective:
    """What a step minimises.

    Attributes:
        reduction: reduction of the loss, over all rows of a step.
        loss: the loss of the tokens.
        router: losses of the routers, or None.
        start: for each sequence, by its identity, log-probabilities of the model before its first
            step, [max(L - 1, 0)] on the host; None where the loss does not need them.
        autocast: narrower dtype that matrix products are computed in, or None.
    """

    reduction: Reduction
    loss: LossConfig = SUPERVISED
    router: RouterConfig | None = None
    start: Mapping[int, Tensor] | None = None
    autocast: Literal["bfloat16"] | None = None

    def computing(self, device: torch.device) -> AbstractContextManager[Any]:
        """Enter the autocast region of a forward pass; its copies of weights end with it.

        Args:
            device: where is computed.

        Returns:
            A context; it does nothing where no dtype is given.
        """
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(device.type, dtype=getattr(torch, self.autocast))

    def measure_router(self, model: nn.Module, rows: Sequence[Batch]) -> RouterLoss | None:
        """Make the losses of the routers for a step.

        Args:
            model: the prepared model.
            rows: all rows of the step, on the model's device.

        Returns:
            The losses; form "batch" over several rows has taken one more forward pass of each.
        """
        if self.router is None:
            return None
        choices = None
        if self.router.form == "batch" and self.router.load_balancing and len(rows) > 1:
            choices = measure_choices(model, rows)
        return RouterLoss(
            self.router.form,
            load_balancing=self.router.load_balancing,
            z=self.router.z,
            window_choices=choices,
        )

    def lay_out(self, batch: Batch, window: LossWindow, router: RouterLoss | None) -> LossTerms:
        """Lay out the loss terms of a row.

        Args:
            batch: the row, on the model's device.
            window: sums over all rows of the step.
            router: what `measure_router` gave for the step.

        Returns:
            The terms.
        """
        if self.loss.name == "sft":
            return sft_terms(batch, self.reduction, window=window, router=router)
        start = None
        if self.start is not None:
            start = [self.start[id(sample)] for sample in batch.samples]
        old: Any = start if self.loss.old_logprobs == "start" else self.loss.old_logprobs
        return policy_terms(
            batch,
            self.reduction,
            objective=self.loss.name,
            old_logprobs=old,
            clip_low=self.loss.clip_low,
            clip_high=self.loss.clip_high,
            reference_logprobs=None if self.loss.reference is None else start,
            kl_coefficient=self.loss.kl_coefficient,
            entropy_coefficient=self.loss.entropy_coefficient,
            temperature=self.loss.temperature,
            window=window,
            router=router,
        )


def make_objective(
    model: nn.Module,
    batches: Sequence[Batch],
    config: TrainConfig,
    partitions: Mapping[Batch, Partitions],
) -> Objective:
    """Make the objective of a run, before its first step or before a checkpoint is loaded.

    Args:
        model: the prepared model as it was before its first step.
        batches: the rows of an epoch.
        config: the run.
        partitions: how the trees of some rows are cut.

    Returns:
        The objective.

    Raises:
        ValueError: the losses of the routers need all rows of a step in one pass, and one is cut;
            or the model's config asks for such losses and the run has none.
        UnsupportedModelError: the model has no routers whose losses could be computed.
    """  # noqa: DOC503 (record_for raises)
    router = config.router
    if (
        router is not None
        and router.form == "batch"
        and router.load_balancing
        and config.accumulation > 1
        and partitions
    ):
        raise ValueError(
            "router.form must not be 'batch' where a step has several rows and some are cut into "
            f"partitions, got accumulation {config.accumulation} and {len(partitions)} cut; choose "
            "micro_batch or sequence, set accumulation=1, or raise tree.max_tokens"
        )
    objective = Objective(config.reduction, config.loss, router, autocast=config.autocast)
    # Refuses losses of routers where there are none, before anything is computed.
    with record_for(model, objective.measure_router(model, [])):
        pass
    if not config.loss.needs_start:
        return objective
    start: dict[int, Tensor] = {}
    device = next(model.parameters()).device
    for batch in batches:
        with objective.computing(device):
            found = row_logprobs(
                model, batch, partitions.get(batch), temperature=config.loss.temperature
            )
        pairs = zip(batch.samples, found, strict=True)
        start |= {id(sample): logprobs.cpu() for sample, logprobs in pairs}
    return replace(objective, start=start)


@torch.no_grad()
def row_logprobs(
    model: nn.Module, batch: Batch, partitions: Partitions | None, *, temperature: float = 1.0
) -> list[Tensor]:
    """Log-probabilities of a row, whole or partition by partition, without gradients.

    Args:
        model: the prepared model.
        batch: the row.
        partitions: how its tree is cut; None: not at all.
        temperature: what logits are divided by.

    Returns:
        One tensor per sequence, [max(L - 1, 0)], nats.
    """
    batch = batch.to(next(model.parameters()).device)
    if partitions is None:
        return sequence_logprobs(model, batch, temperature=temperature)
    return partitioned_logprobs(model, batch, partitions, temperature=temperature)
