"""Keeps a run's checkpoints: when one is due, how many stay, what is left when a run ends early."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from treetrain.models.prepared import PreparedModel
from treetrain.training.checkpoint import Place, save_checkpoint
from treetrain.training.checkpoint_folders import (
    find_checkpoints,
    keep_newest,
    sync,
    write_checkpoint,
)
from treetrain.training.config import TrainConfig
from treetrain.training.output import METRICS, SETTINGS
from treetrain.training.resume import name_versions
from treetrain.training.saving import is_saved
from treetrain.training.trainer import StepMetrics, check_finite


class Keeper:
    """Writes the checkpoints of a run.

    Args:
        output: folder of the run.
        config: the run.
        fingerprint: what `take_fingerprint` gave for it.
        steps: optimiser steps of the whole run.
        per_epoch: steps of one pass over the data.
        say: prints a line for a person.

    Attributes:
        done: the latest step that was done.
        saved: the latest step of which a checkpoint is whole.
    """

    def __init__(
        self,
        output: Path,
        config: TrainConfig,
        fingerprint: Mapping[str, Any],
        *,
        steps: int,
        per_epoch: int,
        say: Callable[[str], None],
    ) -> None:
        self._output = output
        self._config = config
        self._fingerprint = dict(fingerprint)
        self._steps = steps
        self._per_epoch = per_epoch
        self._say = say
        self.done = self.saved = 0

    def is_due(self, step: int) -> bool:
        """Tell whether a checkpoint belongs after a step.

        Args:
            step: the step, counted from 1.

        Returns:
            Whether it does: every `save_every` steps and after the last one.
        """
        every = self._config.save_every
        return every is not None and (step % every == 0 or step == self._steps)

    def save(
        self,
        prepared: PreparedModel,
        model: Any,
        tokenizer: Any,
        *,
        optimizer: torch.optim.Optimizer,
        metrics: StepMetrics,
    ) -> None:
        """Write the checkpoint of a step, and remove the oldest once it is whole.

        Args:
            prepared: the model's handle.
            model: the model, in a wrapper of peft or not.
            tokenizer: its tokenizer, or None.
            optimizer: the optimiser.
            metrics: figures of the step.

        Raises:
            ValueError: parameters are not finite, so that nobody could go on from them.
            OSError: it could not be written; those before are intact.
        """  # noqa: DOC502, DOC503 (check_finite raises)
        check_finite(prepared.model, metrics.step)
        epoch, row = divmod(metrics.step, self._per_epoch)
        place = Place(
            global_step=metrics.step,
            max_steps=self._steps,
            epoch=epoch,
            row=row * self._config.accumulation,
            learning_rate=metrics.lr,
            loss=metrics.loss,
            fingerprint=self._fingerprint,
            versions=name_versions(),
        )
        try:
            # The figures up to here must outlast what they lead to.
            sync(self._output / METRICS)
            write_checkpoint(
                self._output,
                metrics.step,
                lambda folder: save_checkpoint(
                    folder, prepared, model, tokenizer=tokenizer, optimizer=optimizer, place=place
                ),
            )
        # torch and safetensors have their own errors for a disk that is full.
        except (OSError, RuntimeError, SafetensorError) as error:
            raise OSError(
                f"the checkpoint of step {metrics.step} could not be written: {error}"
                f"{_say_free(self._output)}"
            ) from error
        self.saved = metrics.step
        keep_newest(self._output, self._config.keep_last)

    @contextmanager
    def ends_told(self) -> Iterator[None]:
        """Say at an early end what is left of the run.

        Yields:
            Nothing.

        Raises:
            KeyboardInterrupt: as it came.
            BrokenPipeError: as it came: there is nobody left to tell.
            ValueError: as it came, with what is left.
            OSError: as it came, with what is left.
        """
        try:
            yield
        except KeyboardInterrupt:
            self._say(f"note: interrupted after step {self.done}: {self._what_is_left()}")
            raise
        except BrokenPipeError:
            raise
        except OSError as error:
            # The message of one that names a file is made of it.
            name = "" if error.filename is None else f"{error.filename}: "
            raise OSError(f"{name}{error.strerror or error}; {self._what_is_left()}") from error
        except ValueError as error:
            raise ValueError(f"{error}; {self._what_is_left()}") from error

    def _what_is_left(self) -> str:
        # An earlier run's model was taken away before the first step.
        if is_saved(self._output):
            return f"the trained model is in {self._output}"
        whole = find_checkpoints(self._output)
        if not whole:
            return (
                f"the figures so far are in {self._output / METRICS}, there is no checkpoint and "
                "no model was saved"
            )
        settings = shlex.quote(str(self._output / SETTINGS))
        return f"{whole[-1]} is whole; go on with: treetrain train {settings} --resume"


def _say_free(folder: Path) -> str:
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return ""
    return f"; {free:,} bytes are free on its disk"
