"""One training step over a batch whose tree is cut into partitions, exact and each token once."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from treetrain.errors import check_number, check_type
from treetrain.losses.sft import compute_whole
from treetrain.losses.terms import LossTerms, PartLoss
from treetrain.models.prepared import find_prepared
from treetrain.models.routers import Routing
from treetrain.models.score import check_language_model
from treetrain.packing.batch import Batch
from treetrain.packing.parts import BatchPart, cut_batch
from treetrain.partitioning.gradients import all_or_none, check_gradient_hooks
from treetrain.partitioning.joining import find_joined
from treetrain.partitioning.modes import check_modes
from treetrain.partitioning.passes import Passes, no_autocast
from treetrain.partitioning.plan import PartitionPlan
from treetrain.tree.partition import Partitions
from treetrain.tree.prefix_tree import Ints


@dataclass(frozen=True, eq=False)
class PartitionedStep:
    """What a partitioned step computed; its gradients are in the parameters.

    Attributes:
        loss: the loss of the batch, a scalar without gradients, nats.
        targets: number of trained edges, each sequence's own counted.
        statistics: as in `PolicyLoss`; of a supervised loss "logprob" and those of routers.
        partitions: number of partitions that ran.
        computed_tokens: tokens of forward passes; the tree's, and those computed again by plan.
    """

    loss: Tensor
    targets: int
    statistics: dict[str, Tensor]
    partitions: int
    computed_tokens: int


def partitioned_step(
    model: nn.Module,
    batch: Batch,
    plan: PartitionPlan | Partitions,
    terms: LossTerms,
    *,
    modes: Sequence[str] | str | None = None,
    loss_scale: float = 1.0,
) -> PartitionedStep:
    """Compute a loss and its gradients with one path of partitions in memory at a time.

    Loss and gradients are those of the undivided tree, and of each sequence alone. Gradients are
    added to the parameters' `grad` at the end; a step that fails or is interrupted adds none. A
    load-balancing loss needs one more forward pass, without gradients, since how often experts are
    chosen in the whole batch is a factor of each part.

    Args:
        model: a prepared model.
        batch: the sequences, on the model's device.
        plan: how the batch's tree is cut: from `plan_partitions`, or from `partition_tree`, where
            activations of all partitions are kept.
        terms: the loss, from `sft_terms(batch, ...)` or `policy_terms(batch, ...)`.
        modes: what partitions do with their activations while their descendants run, "keep",
            "recompute" or "offload", one for all or one per partition; None: as the plan says.
        loss_scale: what the loss is multiplied by for the gradients alone, as a gradient scaler of
            float16 wants it.

    Returns:
        The loss and its statistics.

    Raises:
        ValueError: the plan divides another tree, the terms are those of another batch, or
            gradients are switched off.
        UnsupportedModelError: the model takes trees as one dense mask, attends several times in a
            layer, or has hooks on gradients of its parameters.

    Example:
        >>> from treetrain.losses.sft import sft_terms
        >>> from treetrain.models.prepare import prepare
        >>> from treetrain.packing.batch import pack
        >>> from treetrain.testing.models import make_tiny_model
        >>> from treetrain.tree.partition import partition_tree
        >>> model, batch = make_tiny_model("llama"), pack([[1, 2, 3, 4], [1, 2, 5, 6, 7]])
        >>> handle = prepare(model)
        >>> plan = partition_tree(batch.tree, 3)
        >>> step = partitioned_step(model, batch, plan, sft_terms(batch, "token_mean"))
        >>> step.partitions, step.computed_tokens
        (3, 7)
    """  # noqa: DOC502, DOC503 (the functions below raise)
    run, total = _run_partitions(model, batch, plan, terms, modes=modes, loss_scale=loss_scale)
    return PartitionedStep(
        loss=total.loss,
        targets=total.targets,
        statistics=total.statistics,
        partitions=run.ran,
        computed_tokens=run.computed_tokens,
    )


def add_gradients(
    model: nn.Module,
    terms: LossTerms,
    plan: PartitionPlan | Partitions | None = None,
    *,
    modes: Sequence[str] | str | None = None,
) -> PartLoss:
    """Compute a loss and add its gradients, on the whole tree or partition by partition.

    Args:
        model: a prepared model.
        terms: the loss.
        plan: how the tree is cut; None: not at all.
        modes: as in `partitioned_step`.

    Returns:
        The loss, nats, and what its statistics are made of, without gradients.
    """
    if plan is not None:
        return _run_partitions(model, terms.batch, plan, terms, modes=modes, loss_scale=1.0)[1]
    whole = compute_whole(model, terms)
    # A row without any target depends on no parameter.
    if whole.loss.requires_grad:
        with no_autocast(whole.loss.device):
            whole.loss.backward()
    return dataclasses.replace(whole, loss=whole.loss.detach())


def _run_partitions(
    model: nn.Module,
    batch: Batch,
    plan: PartitionPlan | Partitions,
    terms: LossTerms,
    *,
    modes: Sequence[str] | str | None,
    loss_scale: float,
) -> tuple[_Run, PartLoss]:
    prepared = find_prepared(model)
    check_type("batch", batch, Batch, "a Batch from pack(samples)")
    check_type("terms", terms, LossTerms, "what sft_terms or policy_terms gives")
    check_number("loss_scale", loss_scale)
    if not (math.isfinite(loss_scale) and loss_scale > 0):
        raise ValueError(f"loss_scale must be finite and above 0, got {loss_scale}")
    check_language_model(model, prepared.head)
    if terms.batch is not batch:
        raise ValueError(
            f"terms must be made of the batch itself, {batch!r}, after any batch.to(device), got "
            f"those of {terms.batch!r}"
        )
    if not torch.is_grad_enabled():
        raise ValueError(
            "gradients must be enabled for a partitioned step, got a call inside torch.no_grad(); "
            "partitioned_logprobs computes without them"
        )
    check_gradient_hooks(model)
    run = _Run(model, plan, terms, modes=modes)
    with all_or_none(model.parameters()):
        return run, run.step(loss_scale)


class _Run:
    """A step's parts, and what each of them gave."""

    def __init__(
        self,
        model: nn.Module,
        plan: PartitionPlan | Partitions,
        terms: LossTerms,
        *,
        modes: Sequence[str] | str | None,
    ) -> None:
        self.model = model
        self.prepared = find_prepared(model)
        self.terms = terms
        self.partitions, planned = read_plan(plan)
        self.parts = find_parts(terms.batch, self.partitions)
        self.modes = check_modes(planned if modes is None else modes, len(self.parts))
        self.routings: dict[int, Routing] = {}
        self.done: list[PartLoss] = []
        self.ran = self.computed_tokens = 0

    def step(self, loss_scale: float) -> PartLoss:
        self.terms.begin()
        computed = self._note_choices() if self.terms.needs_choices else 0
        parents = self.partitions.parents
        with self.terms.recording(self.model) as routing:

            def take_routing(part: int) -> None:
                if routing is not None:
                    self.routings[part] = dataclasses.replace(routing)

            wanted = find_wanted(self.parts, parents, all_of_them=routing is not None)
            joined = find_joined(
                self.prepared,
                self.terms.batch,
                self.partitions,
                parts=self.parts,
                modes=self.modes,
                wanted=wanted,
            )
            passes = Passes(
                self.prepared,
                self.parts,
                parents.tolist(),
                modes=self.modes,
                joined=joined,
                on_forward=take_routing,
            )
            passes.run(lambda part, hidden: self._evaluate(part, hidden) * loss_scale, wanted)
        self.ran, self.computed_tokens = sum(wanted), computed + passes.computed_tokens
        nothing = PartLoss(torch.zeros((), device=self.terms.batch.device), 0, {})
        return functools.reduce(operator.add, self.done, nothing)

    def _note_choices(self) -> int:
        passes = Passes(self.prepared, self.parts, self.partitions.parents.tolist())
        with self.terms.recording(self.model) as routing:
            passes.run_forward(lambda part, _: self.terms.note_choices(routing, self.parts[part]))
        return passes.computed_tokens

    def _evaluate(self, part: int, hidden: Tensor) -> Tensor:
        routing = self.routings.pop(part, None)
        own = self.terms.evaluate(self.prepared, hidden, self.parts[part], routing=routing)
        self.done.append(dataclasses.replace(own, loss=own.loss.detach()))
        return own.loss


def read_plan(plan: PartitionPlan | Partitions) -> tuple[Partitions, Sequence[str] | str]:
    """Take partitions and modes out of what a caller hands over as a plan.

    Args:
        plan: a plan, or partitions alone, which keep their activations.

    Returns:
        The partitions, and the mode of each or of all.
    """
    check_type(
        "plan", plan, (PartitionPlan, Partitions), "what plan_partitions or partition_tree gives"
    )
    if isinstance(plan, Partitions):
        return plan, "keep"
    return plan.partitions, plan.modes


def find_parts(batch: Batch, partitions: Partitions) -> list[BatchPart]:
    """Find the parts of a batch; those of the latest partitions are kept with its packed row.

    Args:
        batch: the batch.
        partitions: how its tree is cut.

    Returns:
        One part per partition.
    """
    kept = batch.packed.plans.get("parts")
    if kept is None or kept[0] is not partitions:
        kept = (partitions, cut_batch(batch, partitions))
        batch.packed.plans["parts"] = kept
    return kept[1]


def find_wanted(parts: Sequence[BatchPart], parents: Ints, *, all_of_them: bool) -> list[bool]:
    """Find which parts have a loss, or hold ancestors of one that has.

    Args:
        parts: the parts.
        parents: part that each hangs from, -1 for none, [P].
        all_of_them: whether each has a loss.

    Returns:
        Whether each part has to run.
    """
    wanted = [all_of_them or len(part.part.targets) > 0 for part in parts]
    for part in range(len(wanted) - 1, -1, -1):
        if wanted[part] and parents[part] >= 0:
            wanted[int(parents[part])] = True
    return wanted
