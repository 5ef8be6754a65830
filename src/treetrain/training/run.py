"""A whole training run: check, loop, metrics, and the folder with the trained model."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import yaml
from tqdm import tqdm
from transformers import PreTrainedModel

from treetrain.data.sample import Sample
from treetrain.errors import UnsupportedModelError
from treetrain.models.prepare import prepare
from treetrain.packing.batch import Batch, pack
from treetrain.progress import Progress
from treetrain.training.config import TrainConfig
from treetrain.training.saving import CONFIG, remove_model, save_model
from treetrain.training.trainer import StepMetrics, cut_large, pack_shuffled, train_steps
from treetrain.tree.partition import Partitions
from treetrain.verification.equivalence import Report
from treetrain.verification.verify import verify
from treetrain.wording import say_count

METRICS = "metrics.jsonl"


def run_training(
    model: PreTrainedModel,
    samples: Sequence[Sample],
    config: TrainConfig,
    *,
    tokenizer: Any = None,
    say: Callable[[str], None] = print,
) -> list[StepMetrics]:
    """Train a model and save it.

    The first packed row is checked against separate sequences before the first step; a difference
    stops the run. The model is saved at the end only, and an earlier run's is taken away before the
    first step; an interruption leaves the metrics so far, and says so.

    Args:
        model: a plain model on its device; afterwards it is trained and plain again.
        samples: the sequences.
        config: the run; its parts `model`, `data` and `tokenizer` are not read here.
        tokenizer: saved with the model.
        say: prints a line for a person.

    Returns:
        The figures of every step.

    Raises:
        ValueError: the output folder holds an earlier run, or nothing is trained.
        EquivalenceError: trees and separate sequences differ on this model and data.
    """  # noqa: DOC503 (verify raises EquivalenceError)
    output = Path(config.output)
    claim_output(output, overwrite=config.overwrite)
    if not any(sample.weights[1:].any() for sample in samples):
        raise ValueError(
            f"data must train at least one token, got none in {len(samples)} sequences"
        )
    seed = config.seed if config.data.shuffle else None
    split = config.tree.larger == "split"
    batches = pack_shuffled(
        samples, max_tokens=config.tree.max_tokens, seed=seed, split_groups=split
    )
    partitions = {} if split else cut_large(batches, config.tree.max_tokens)
    say(describe_batches(batches, partitions))
    steps = config.steps or (config.epochs or 1) * math.ceil(len(batches) / config.accumulation)
    was_training = model.training
    handle = prepare(model, config.tree.backend)
    if partitions and not handle.layers:
        handle.undo()
        raise UnsupportedModelError(
            f"{type(model).__name__} takes trees as one dense mask, and "
            f"{say_count(len(partitions), 'tree')} exceed tree.max_tokens "
            f"({config.tree.max_tokens:,}) and cannot be cut into partitions; set "
            "tree.larger=split, which computes shared prefixes again, or "
            "raise tree.max_tokens"
        )
    if config.model.gradient_checkpointing:
        _set_checkpointing(model, True)
    torch.manual_seed(config.seed)
    done: list[StepMetrics] = []
    try:
        model.train()
        if config.check.flat_tokens:
            first_row = next(batch for batch in batches if len(batch.targets))
            check_first(model, first_row, config, say=say, in_parts=bool(partitions))
        # An earlier run's model must not pass for this run's, should this run end early.
        remove_model(output)
        (output / "config.yaml").write_text(yaml.safe_dump(config.model_dump(), sort_keys=False))
        loop = train_steps(
            model,
            batches,
            config.reduction,
            steps=steps,
            optimizer=config.optimizer,
            schedule=config.schedule,
            accumulation=config.accumulation,
            clip_norm=config.clip_norm,
            seed=seed,
            partitions=partitions,
            activations=config.tree.activations,
        )
        with (
            _interruption_told(done, output, say),
            open(output / METRICS, "w", encoding="utf-8") as file,
            _bar(steps) as tell,
        ):
            for metrics in loop:
                done.append(metrics)
                file.write(json.dumps(asdict(metrics)) + "\n")
                file.flush()
                tell(metrics)
    finally:
        handle.undo()
        model.train(was_training)
        if config.model.gradient_checkpointing:
            _set_checkpointing(model, False)
    with _interruption_told(done, output, say):
        save_model(model, tokenizer, output)
    first, last = done[0].loss, done[-1].loss
    say(f"trained {len(done)} steps: loss {first:.4g} -> {last:.4g}; model in {output}")
    return done


def _set_checkpointing(model: PreTrainedModel, enabled: bool) -> None:
    # transformers renamed both methods in a release after the oldest that is supported.
    verb = "enable" if enabled else "disable"
    name = f"activation_checkpointing_{verb}"
    switch = getattr(model, name, None) or getattr(model, f"gradient_checkpointing_{verb}")
    switch(*([{"use_reentrant": False}] if enabled else []))


@contextmanager
def _interruption_told(
    done: Sequence[StepMetrics], output: Path, say: Callable[[str], None]
) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        say(
            f"note: interrupted after step {len(done)}: the metrics so far are in "
            f"{output / METRICS}, no model was saved"
        )
        raise


@contextmanager
def _bar(steps: int) -> Iterator[Callable[[StepMetrics], None]]:
    """A bar on a terminal, lines at intervals elsewhere."""
    if not sys.stderr.isatty():
        progress = Progress()
        progress("training step", 0, steps)
        yield lambda metrics: progress(
            "training step",
            metrics.step,
            steps,
            f"loss {metrics.loss:.4g}, {metrics.seconds:.3g} s",
        )
        return
    with tqdm(total=steps, unit="step", dynamic_ncols=True) as bar:

        def tell(metrics: StepMetrics) -> None:
            bar.set_postfix(loss=f"{metrics.loss:.4g}", lr=f"{metrics.lr:.2g}", refresh=False)
            bar.update()

        yield tell
