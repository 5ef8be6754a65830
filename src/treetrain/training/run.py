"""A whole training run: check, loop, figures, checkpoints, the folder with the trained model."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from treetrain.data.sample import Sample
from treetrain.errors import UnsupportedModelError
from treetrain.models.prepare import prepare
from treetrain.models.prepared import PreparedModel
from treetrain.training.checkpoint import load_checkpoint
from treetrain.training.config import TrainConfig
from treetrain.training.display import show_run
from treetrain.training.evaluation import evaluate_loss
from treetrain.training.fingerprint import take_fingerprint
from treetrain.training.first_check import check_first
from treetrain.training.holding import hold_output
from treetrain.training.interruption import Interruption
from treetrain.training.keeper import Keeper
from treetrain.training.objective import Objective, make_objective
from treetrain.training.observers import RunOutline, Watch
from treetrain.training.output import (
    CHECK,
    METRICS,
    SETTINGS,
    append_line,
    claim_output,
    cut_metrics,
    remove_run,
    write_whole,
)
from treetrain.training.resume import find_resumable
from treetrain.training.row_checks import check_rows
from treetrain.training.rows import EpochRows, describe_batches, hold_out, make_rows
from treetrain.training.saving import remove_model, save_model
from treetrain.training.trainer import StepMetrics, check_finite, make_optimizer, train_steps
from treetrain.wording import say_count


def run_training(
    model: Any,
    samples: Sequence[Sample],
    config: TrainConfig,
    *,
    tokenizer: Any = None,
    evaluated: Sequence[Sample] = (),
    resume: bool = False,
    watches: Sequence[Watch] = (show_run,),
    say: Callable[[str], None] = print,
) -> list[StepMetrics]:
    """Train a model and save it.

    The first packed row is checked against separate sequences before the first step. A checkpoint
    is written every `config.save_every` steps, and after the step in which Ctrl-C was pressed; a
    kill leaves the last whole one. The model is saved at the end only, and an earlier run's is
    taken away before the first step.

    Args:
        model: a plain model on its device, with adapters of peft or without; afterwards it is
            trained and plain again. To resume, as it was before the run's first step.
        samples: the sequences.
        config: the run; its parts `model`, `data` and `tokenizer` are not read here.
        tokenizer: saved with the model.
        evaluated: sequences that are evaluated, where `config.evaluation` names files.
        resume: whether to go on from the last whole checkpoint in the output folder.
        watches: what follows the run.
        say: prints a line for a person.

    Returns:
        The figures of every step that was done here.

    Raises:
        ValueError: the output folder holds an earlier run, nothing is trained, a loss is not
            finite, or the run to resume is another one.
        EquivalenceError: trees and separate sequences differ on this model and data.
        OSError: the folder cannot be written; the last whole checkpoint is intact.
    """  # noqa: DOC502, DOC503 (the functions below raise)
    output = Path(config.output)
    claim_output(output, overwrite=config.overwrite, resume=resume)
    with hold_output(output):
        return _run(
            model,
            samples,
            config,
            tokenizer=tokenizer,
            evaluated=evaluated,
            resume=resume,
            watches=watches,
            say=say,
        )


def _run(
    model: Any,
    samples: Sequence[Sample],
    config: TrainConfig,
    *,
    tokenizer: Any,
    evaluated: Sequence[Sample],
    resume: bool,
    watches: Sequence[Watch],
    say: Callable[[str], None],
) -> list[StepMetrics]:
    output = Path(config.output)
    held = list(evaluated)
    if config.evaluation is not None and config.evaluation.share is not None:
        samples, held = hold_out(samples, config.evaluation.share, seed=config.seed)
    for name, found in (("data", samples), ("evaluation", held)):
        if (name == "data" or config.evaluation) and not any(s.weights[1:].any() for s in found):
            raise ValueError(
                f"{name} must train at least one token, got none in {len(found)} sequences"
            )
    fingerprint = take_fingerprint(config, samples, held, model=model)
    found = find_resumable(output, fingerprint, say=say) if resume else None
    seed = config.seed if config.data.shuffle else None
    rows = make_rows(samples, config.tree, seed=seed)
    others = make_rows(held, config.tree, seed=None) if held else EpochRows([], {})
    say(describe_batches(rows.batches, rows.partitions))
    if config.evaluation is not None:
        every = say_count(config.evaluation.every, "step")
        say(f"evaluation: {say_count(len(held), 'sequence')} not trained, every {every}")
    if config.loss.name != "sft" and all(_is_level(sample) for sample in samples):
        say(f"note: every advantage is 0: loss {config.loss.name!r} makes no answer likelier")
    per_epoch = math.ceil(len(rows.batches) / config.accumulation)
    steps = config.steps or (config.epochs or 1) * per_epoch
    keeper = Keeper(output, config, fingerprint, steps=steps, per_epoch=per_epoch, say=say)
    done: list[StepMetrics] = []
    with _prepared(model, config, [rows, others]) as handle:
        check_rows(handle, rows, others, config, steps=steps)
        torch.manual_seed(config.seed)
        objective = make_objective(model, rows.batches, config, rows.partitions)
        optimizer = make_optimizer(model, config.optimizer)
        start = 0
        if found is not None:
            folder, place = found
            start = keeper.saved = place.global_step
            if start > steps:
                raise ValueError(
                    f"steps must be at least the {start} that {folder.name} has done, got {steps}"
                )
            load_checkpoint(folder, handle, model, optimizer)
            say(f"resumed from {folder.name}: {start} of {say_count(steps, 'step')} done")
        report = None
        if config.check.wanted and start < steps:
            report = _check(model, rows, config, objective, say)
        # An earlier run's model must not pass for this run's, should this run end early.
        if found is None:
            remove_run(output)
        else:
            remove_model(output)
        # First the file that makes it a run, which can be resumed from here on.
        cut_metrics(output, start)
        settings = yaml.safe_dump(config.model_dump(), sort_keys=False)
        write_whole(output / SETTINGS, settings)
        if report is not None:
            write_whole(output / CHECK, json.dumps(report, indent=1) + "\n")
        outline = RunOutline(
            output, config, steps, start, rows.batches, rows.partitions, others.batches
        )
        loop = train_steps(
            model,
            rows.batches,
            objective,
            steps=steps,
            optimizer=config.optimizer,
            schedule=config.schedule,
            accumulation=config.accumulation,
            clip_norm=config.clip_norm,
            seed=seed,
            partitions=rows.partitions,
            activations=config.tree.activations,
            adamw=optimizer,
            start=start,
        )

        def evaluate() -> float:
            with objective.computing(handle.model.device):
                return evaluate_loss(
                    model, others.batches, config.reduction, partitions=others.partitions
                )

        with (
            keeper.ends_told(),
            Interruption(say) as interruption,
            ExitStack() as stack,
        ):
            observers = [stack.enter_context(watch(outline)) for watch in watches]
            for metrics in loop:
                last = metrics.step == steps
                if config.evaluation and (last or metrics.step % config.evaluation.every == 0):
                    metrics = dataclasses.replace(metrics, evaluation_loss=evaluate())
                done.append(metrics)
                keeper.done = metrics.step
                _write_line(output / METRICS, metrics)
                try:
                    for observer in observers:
                        observer.tell(metrics)
                except BrokenPipeError:
                    # Nobody reads any more, which ends the run and must not cost what it did.
                    keeper.save(handle, model, tokenizer, optimizer=optimizer, metrics=metrics)
                    raise
                if interruption.wished or keeper.is_due(metrics.step):
                    keeper.save(handle, model, tokenizer, optimizer=optimizer, metrics=metrics)
                if interruption.wished:
                    raise KeyboardInterrupt
            # Before the watches end: none of them can cost what was trained.
            with handle.undone():
                save_model(model, tokenizer, output)
    say(_describe_end(done, output))
    return done


@contextmanager
def _prepared(
    model: Any, config: TrainConfig, parts: Sequence[EpochRows]
) -> Iterator[PreparedModel]:
    """The model as it is trained; afterwards it is as before."""
    check_finite(model, 0)
    was_training = model.training
    handle = prepare(model, config.tree.backend)
    try:
        cut = sum(len(rows.partitions) for rows in parts)
        if cut and not handle.layers:
            raise UnsupportedModelError(
                f"{type(model).__name__} takes trees as one dense mask, and "
                f"{say_count(cut, 'tree')} exceed tree.max_tokens "
                f"({config.tree.max_tokens:,}) and cannot be cut into partitions; set "
                "tree.larger=split, which computes shared prefixes again, or "
                "raise tree.max_tokens"
            )
        if config.model.gradient_checkpointing:
            _set_checkpointing(model, True)
        model.train()
        yield handle
    finally:
        handle.undo()
        model.train(was_training)
        if config.model.gradient_checkpointing:
            _set_checkpointing(model, False)


def _check(
    model: Any,
    rows: EpochRows,
    config: TrainConfig,
    objective: Objective,
    say: Callable[[str], None],
) -> dict[str, Any]:
    first_row = next(batch for batch in rows.batches if len(batch.targets))
    with objective.computing(next(model.parameters()).device):
        report = check_first(model, first_row, config, say=say, in_parts=bool(rows.partitions))
    return report.to_dict()


def _write_line(path: Path, metrics: StepMetrics) -> None:
    append_line(path, json.dumps(metrics.figures))


def _is_level(sample: Sample) -> bool:
    return sample.advantage is not None and not np.any(sample.advantage)


def _describe_end(done: Sequence[StepMetrics], output: Path) -> str:
    if not done:
        return f"no step was left to train; model in {output}"
    text = f"trained {say_count(len(done), 'step')}: loss {done[0].loss:.4g} -> {done[-1].loss:.4g}"
    if done[-1].evaluation_loss is not None:
        text += f", evaluation loss {done[-1].evaluation_loss:.4g}"
    return f"{text}; model in {output}"


def _set_checkpointing(model: Any, enabled: bool) -> None:
    # transformers renamed both methods in a release after the oldest that is supported.
    verb = "enable" if enabled else "disable"
    name = f"activation_checkpointing_{verb}"
    switch = getattr(model, name, None) or getattr(model, f"gradient_checkpointing_{verb}")
    switch(*([{"use_reentrant": False}] if enabled else []))
