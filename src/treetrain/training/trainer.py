"""The loop of training on trees: optimiser steps and their figures.

The rows are made in `rows`, their loss in `objective`; files and what a run shows are in `run`.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from time import perf_counter

import torch
from torch import nn

from treetrain.losses.part_loss import PartLoss
from treetrain.losses.reductions import Reduction
from treetrain.losses.window import LossWindow, measure_window
from treetrain.packing.batch import Batch
from treetrain.partitioning.modes import Mode
from treetrain.partitioning.step import add_gradients
from treetrain.training.config import OptimizerConfig, ScheduleConfig
from treetrain.training.objective import Objective
from treetrain.training.rows import order_windows
from treetrain.training.schedule import learning_rate_factor
from treetrain.tree.partition import Partitions

#: Where torch has a fused kernel of AdamW since its version 2.4.
_FUSED_DEVICES = frozenset({"cpu", "cuda"})


@dataclass(frozen=True)
class StepMetrics:
    """Figures of one optimiser step; a line of `metrics.jsonl`.

    Attributes:
        step: counted from 1.
        epoch: passes over the data that are complete after the step.
        loss: loss of the step as its reduction defines it, nats.
        lr: learning rate of the step.
        grad_norm: norm of all gradients together, before clipping.
        sequences: sequences of the step.
        flat_tokens: tokens of these sequences.
        tree_tokens: tokens of their trees.
        partitions: forward passes on parts of trees that are larger than a row; 0 without such.
        normaliser: what the reduction divided by: sequences, trajectories, or a sum of weights.
        seconds: how long the step took.
        flat_tokens_per_second: flat tokens over seconds.
        tree_tokens_per_second: tree tokens over seconds.
        statistics: what the loss knows of its trained edges, as in `PolicyLoss`, by name: means
            over all of the step; and the losses of routers.
        evaluation_loss: loss on the sequences that are not trained, after the step, nats; None:
            they were not evaluated.
    """

    step: int
    epoch: float
    loss: float
    lr: float
    grad_norm: float
    sequences: int
    flat_tokens: int
    tree_tokens: int
    partitions: int
    normaliser: float
    seconds: float
    flat_tokens_per_second: float
    tree_tokens_per_second: float
    statistics: Mapping[str, float] = field(default_factory=dict[str, float])
    evaluation_loss: float | None = None

    @property
    def figures(self) -> dict[str, float | None]:
        """All figures by name, statistics among them; None where one is no finite number."""
        figures = asdict(self)
        statistics: dict[str, float] = figures.pop("statistics")
        if self.evaluation_loss is None:
            del figures["evaluation_loss"]
        return {
            name: value if math.isfinite(value) else None
            for name, value in {**figures, **statistics}.items()
        }


def train_steps(
    model: nn.Module,
    batches: Sequence[Batch],
    objective: Objective,
    *,
    steps: int,
    optimizer: OptimizerConfig,
    schedule: ScheduleConfig,
    accumulation: int = 1,
    clip_norm: float | None = None,
    seed: int | None = None,
    partitions: Mapping[Batch, Partitions] | None = None,
    activations: Mode = "keep",
    adamw: torch.optim.AdamW | None = None,
    start: int = 0,
) -> Iterator[StepMetrics]:
    """Train a prepared model, one optimiser step at a time.

    What a step does depends on its number and on the states of model and optimiser alone, so that
    steps which begin at `start` are those that would have come there.

    Args:
        model: the model, on its device.
        batches: the rows of an epoch.
        objective: the loss, over all rows of a step.
        steps: optimiser steps of the whole run.
        optimizer: AdamW.
        schedule: learning rate over the steps.
        accumulation: rows of one step.
        clip_norm: largest norm of all gradients together; None: no limit.
        seed: seed of the order of the rows; None: as they stand.
        partitions: how the trees of some rows are cut; the others run undivided.
        activations: what partitions do with their activations, as in `partitioned_step`.
        adamw: the optimiser with its state, from `make_optimizer`; None: a fresh one.
        start: steps that are done already.

    Yields:
        What each step did.

    Raises:
        ValueError: loss or gradients are not finite, or parameters after the last step.
    """
    cuts = partitions or {}
    device = next(model.parameters()).device
    if adamw is None:
        adamw = make_optimizer(model, optimizer)
    per_epoch = math.ceil(len(batches) / accumulation)
    windows = order_windows(batches, accumulation, seed=seed)
    for number, rows in enumerate(islice(windows, start, steps), start):
        begin = perf_counter()
        factor = learning_rate_factor(
            number,
            steps,
            schedule.kind,
            warmup_steps=schedule.warmup_steps,
            final_factor=schedule.final_factor,
        )
        for group in adamw.param_groups:
            group["lr"] = optimizer.lr * factor
        window = measure_window(rows)
        placed = [batch.to(device) for batch in rows]
        with objective.computing(device):
            router = objective.measure_router(model, placed)
        shares: list[PartLoss] = []
        for batch, own in zip(rows, placed, strict=True):
            terms = objective.lay_out(own, window, router)
            with objective.computing(device):
                shares.append(add_gradients(model, terms, cuts.get(batch), modes=activations))
        total = functools.reduce(operator.add, shares)
        loss = float(total.loss)
        norm = nn.utils.clip_grad_norm_(model.parameters(), clip_norm or math.inf)
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise ValueError(
                f"loss and gradients must be finite, got loss {loss:.6g} and norm "
                f"{float(norm):.6g} at step {number + 1}; lower optimizer.lr or set clip_norm"
            )
        adamw.step()
        adamw.zero_grad(set_to_none=True)
        if number + 1 == steps:
            check_finite(model, steps)
        seconds = perf_counter() - begin
        flat = sum(int(batch.tree.sequence_lengths.sum()) for batch in rows)
        tree = sum(batch.num_tokens for batch in rows)
        yield StepMetrics(
            step=number + 1,
            epoch=round((number + 1) / per_epoch, 4),
            loss=loss,
            lr=optimizer.lr * factor,
            grad_norm=float(norm),
            sequences=window.sequences,
            flat_tokens=flat,
            tree_tokens=tree,
            partitions=sum(cuts[batch].num_partitions for batch in rows if batch in cuts),
            normaliser=find_normaliser(objective.reduction, window),
            seconds=round(seconds, 6),
            flat_tokens_per_second=round(flat / seconds, 1),
            tree_tokens_per_second=round(tree / seconds, 1),
            statistics={name: float(value) for name, value in total.statistics.items()},
        )


def check_finite(model: nn.Module, step: int) -> None:
    """Refuse parameters that the loss of a next step would show to be wrong.

    Args:
        model: the model.
        step: the step that was done; 0 before the first.

    Raises:
        ValueError: one is not finite; names it.
    """
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            if step == 0:
                raise ValueError(
                    f"parameters must be finite before the first step, got others in {name}; take "
                    "the model as it was before it was spoilt"
                )
            raise ValueError(
                f"parameters must be finite after step {step}, got others in {name}; lower "
                "optimizer.lr or raise optimizer.eps"
            )


def make_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """Make AdamW for the trainable parameters; those of one dimension do not decay.

    Args:
        model: the model.
        config: its settings.

    Returns:
        The optimiser.

    Raises:
        ValueError: nothing is trainable, or a fused kernel is asked for where there is none.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in trainable if p.ndim <= 1], "weight_decay": 0.0},
    ]
    if not trainable:
        raise ValueError("model must have a trainable parameter, got none with requires_grad")
    kinds = {parameter.device.type for parameter in trainable}
    fused = kinds <= _FUSED_DEVICES if config.fused is None else config.fused
    if fused and not kinds <= _FUSED_DEVICES:
        raise ValueError(
            f"optimizer.fused must be false on {', '.join(sorted(kinds))}: torch has a fused "
            f"kernel on {', '.join(sorted(_FUSED_DEVICES))}"
        )
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        fused=fused,
    )


def find_normaliser(reduction: Reduction, window: LossWindow) -> float:
    """Find what a step's loss was divided by.

    Args:
        reduction: the reduction.
        window: sums over the step.

    Returns:
        Sequences for path_mean and sequence_mean (which also divides each sequence by its own
        weights), trajectories for trajectory_mean, the sum of weights for token_mean, 1 for sum, or
        the number given.
    """
    if not isinstance(reduction, str):
        return float(reduction)
    found = {
        "path_mean": window.sequences,
        "sequence_mean": window.sequences,
        "trajectory_mean": window.num_trajectories,
        "token_mean": window.weights.total,
        "sum": 1,
    }
    return float(found[reduction])
