"""One training step computed both ways: on trees, and each sequence alone.

Which differences are right is judged elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from treetrain.data.sample import Sample
from treetrain.losses.logprobs import sequence_logprobs
from treetrain.losses.reductions import Reduction
from treetrain.losses.router_loss import RouterLoss
from treetrain.losses.sft import sft_terms
from treetrain.losses.window import measure_window
from treetrain.models.prepared import PreparedModel
from treetrain.packing.batch import Batch, pack
from treetrain.packing.budget import pack_batches
from treetrain.packing.recover import recover_sequences
from treetrain.partitioning.logprobs import partitioned_hidden_states, partitioned_logprobs
from treetrain.partitioning.step import add_gradients
from treetrain.tree.partition import Partitions, partition_tree
from treetrain.verification.baseline import Outcome, compute_separately, loss_coefficients
from treetrain.verification.restore import take_gradients

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, eq=False)
class StepResult:
    """What one way of computing a step gave.

    Attributes:
        outcome: log-probabilities and loss.
        gradients: gradient of each trainable parameter by name.
    """

    outcome: Outcome
    gradients: Mapping[str, Tensor]

    @property
    def logprobs(self) -> dict[str, Tensor]:
        """Log-probabilities by index of the sequence, each [max(L - 1, 0)], nats."""
        return {str(index): value for index, value in enumerate(self.outcome.logprobs)}


@dataclass(frozen=True, eq=False)
class TreeRow:
    """A packed row, and how its tree is cut where it is larger than a row.

    Attributes:
        batch: the row.
        partitions: its tree's partitions; None: it runs undivided.
    """

    batch: Batch
    partitions: Partitions | None

    def logprobs(self, model: nn.Module) -> list[Tensor]:
        """Log-probabilities of each sequence, without gradients, each [max(L - 1, 0)]."""
        if self.partitions is not None:
            return partitioned_logprobs(model, self.batch, self.partitions)
        with torch.no_grad():
            return sequence_logprobs(model, self.batch)

    def hidden_states(self, prepared: PreparedModel) -> Tensor:
        """Hidden states of the packed tokens, without gradients, [T, C]."""
        if self.partitions is not None:
            return partitioned_hidden_states(prepared, self.batch, self.partitions)
        with torch.no_grad():
            return prepared.hidden_states(self.batch.packed)


@dataclass(frozen=True, eq=False)
class StepWork:
    """The step that is computed both ways.

    Attributes:
        samples: the sequences.
        reduction: reduction of the loss.
        max_tokens: tree tokens of one packed row; None: everything in one row. A larger tree is cut
            into partitions of that size, or, for a model on a dense mask, split into rows.
        on_progress: called with the stage, parts done, and parts in all.
    """

    samples: Sequence[Sample]
    reduction: Reduction
    max_tokens: int | None
    on_progress: Progress

    def pack(self, prepared: PreparedModel, samples: Sequence[Sample]) -> list[TreeRow]:
        """Pack sequences into rows.

        Args:
            prepared: handle of the model.
            samples: the sequences.

        Returns:
            The rows, on the model's device.
        """
        device = prepared.model.device
        if self.max_tokens is None:
            return [TreeRow(pack(samples).to(device), None)]
        can_cut = bool(prepared.layers)
        batches = pack_batches(samples, max_tokens=self.max_tokens, split_groups=not can_cut)
        return [
            TreeRow(
                batch.to(device),
                partition_tree(batch.tree, self.max_tokens)
                if can_cut and batch.exceeds_budget
                else None,
            )
            for batch in batches
        ]

    def run_separately(self, prepared: PreparedModel, stage: str = "separate") -> StepResult:
        """Run each sequence alone through the plain model.

        Args:
            prepared: handle of the model, which is given back for the while.
            stage: name for the progress.

        Returns:
            The result; the parameters are left without gradients.
        """
        done = 0

        def count() -> None:
            nonlocal done
            done += 1
            self.on_progress(stage, done, len(self.samples))

        self.on_progress(stage, 0, len(self.samples))
        coefficients = loss_coefficients(self.samples, self.reduction)
        with prepared.undone():
            outcome = compute_separately(
                prepared.model, self.samples, coefficients, on_sequence=count
            )
        return StepResult(outcome, take_gradients(prepared.model))

    def run_tree(self, prepared: PreparedModel, stage: str = "tree") -> StepResult:
        """Run the packed rows, as a training loop does.

        Args:
            prepared: handle of the model.
            stage: name for the progress.

        Returns:
            The result; the parameters are left without gradients.
        """
        model = prepared.model
        rows = self.pack(prepared, self.samples)
        window = measure_window(row.batch for row in rows)
        loss = 0.0
        self.on_progress(stage, 0, len(rows))
        for number, row in enumerate(rows, start=1):
            # Routers have no loss in the baseline either.
            terms = sft_terms(row.batch, self.reduction, window=window, router=RouterLoss("batch"))
            loss += float(add_gradients(model, terms, row.partitions).loss)
            self.on_progress(stage, number, len(rows))
        logprobs = self.tree_logprobs(prepared, self.samples)
        return StepResult(Outcome(logprobs, loss), take_gradients(model))

    def tree_logprobs(self, prepared: PreparedModel, samples: Sequence[Sample]) -> list[Tensor]:
        """Compute log-probabilities on trees, without gradients.

        Args:
            prepared: handle of the model.
            samples: the sequences.

        Returns:
            One tensor per sequence in input order, [max(L - 1, 0)] float64 on the CPU, nats.
        """
        found: dict[int, Tensor] = {}
        for row in self.pack(prepared, samples):
            own = [value.double().cpu() for value in row.logprobs(prepared.model)]
            found.update(zip(row.batch.indices.tolist(), own, strict=True))
        return [found[index] for index in range(len(samples))]

    def tree_hidden(self, prepared: PreparedModel, samples: Sequence[Sample]) -> list[Tensor]:
        """Compute hidden states on trees, without gradients.

        Args:
            prepared: handle of the model.
            samples: the sequences.

        Returns:
            One tensor per sequence in input order, [L, C].
        """
        found: dict[int, Tensor] = {}
        for row in self.pack(prepared, samples):
            own = recover_sequences(row.hidden_states(prepared), row.batch, per="token")
            found.update(zip(row.batch.indices.tolist(), own, strict=True))
        return [found[index] for index in range(len(samples))]
