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
from treetrain.losses.router import RouterLoss
from treetrain.losses.sft import sft_loss
from treetrain.losses.window import measure_window
from treetrain.models.prepared import PreparedModel
from treetrain.packing.batch import Batch, pack
from treetrain.packing.budget import pack_batches
from treetrain.packing.recover import recover_sequences
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
class StepWork:
    """The step that is computed both ways.

    Attributes:
        samples: the sequences.
        reduction: reduction of the loss.
        max_tokens: tree tokens of one packed row; None: everything in one row.
        on_progress: called with the stage, parts done, and parts in all.
    """

    samples: Sequence[Sample]
    reduction: Reduction
    max_tokens: int | None
    on_progress: Progress

    def pack(self, samples: Sequence[Sample], device: torch.device) -> list[Batch]:
        """Pack sequences into rows.

        Args:
            samples: the sequences.
            device: where the rows shall live.

        Returns:
            The rows.
        """
        if self.max_tokens is None:
            return [pack(samples).to(device)]
        batches = pack_batches(samples, max_tokens=self.max_tokens)
        return [batch.to(device) for batch in batches]

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
        batches = self.pack(self.samples, model.device)
        window = measure_window(batches)
        loss = 0.0
        self.on_progress(stage, 0, len(batches))
        for number, batch in enumerate(batches, start=1):
            # Routers have no loss in the baseline either.
            part = sft_loss(model, batch, self.reduction, window=window, router=RouterLoss("batch"))
            # Without a single target the loss depends on nothing.
            if part.requires_grad:
                part.backward()
            loss += float(part.detach())
            self.on_progress(stage, number, len(batches))
        logprobs = self.tree_logprobs(model, self.samples)
        return StepResult(Outcome(logprobs, loss), take_gradients(model))

    def tree_logprobs(self, model: nn.Module, samples: Sequence[Sample]) -> list[Tensor]:
        """Compute log-probabilities on trees, without gradients.

        Args:
            model: a prepared model.
            samples: the sequences.

        Returns:
            One tensor per sequence in input order, [max(L - 1, 0)] float64 on the CPU, nats.
        """
        found: dict[int, Tensor] = {}
        for batch in self.pack(samples, next(model.parameters()).device):
            with torch.no_grad():
                logprobs = sequence_logprobs(model, batch)
            own = [value.double().cpu() for value in logprobs]
            found.update(zip(batch.indices.tolist(), own, strict=True))
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
        for batch in self.pack(samples, prepared.model.device):
            with torch.no_grad():
                hidden = prepared.hidden_states(batch.packed)
            own = recover_sequences(hidden, batch, per="token")
            found.update(zip(batch.indices.tolist(), own, strict=True))
        return [found[index] for index in range(len(samples))]
