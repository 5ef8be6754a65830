"""`treetrain train`: training from a configuration file, with checkpoints to go on from."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from treetrain.data.sample import Sample
    from treetrain.training.config import TrainConfig
    from treetrain.training.trainer import StepMetrics


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `treetrain train`.

    Args:
        parser: parser of this verb.
    """
    parser.add_argument("config", metavar="CONFIG", type=Path, help="YAML file")
    parser.add_argument(
        "--set",
        metavar="A.B=VALUE",
        action="append",
        default=[],
        help="a value instead of the file's, read as YAML; may be repeated",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="go on from the last whole checkpoint in the output folder",
    )


def run(args: argparse.Namespace) -> int:
    """Reads the configuration and the data, trains, saves.

    Args:
        args: parsed arguments.

    Returns:
        Exit code 0.

    Raises:
        RandomModelError: the model cannot be trained exactly, because it draws at random;
            names the value to change.
    """
    from treetrain.training.config_file import load_config
    from treetrain.training.tracker_names import check_trackers

    config = load_config(args.config, args.set)
    check_trackers(config.trackers)
    # The configuration is checked before anything that takes seconds is imported.
    import torch

    from treetrain.cli.configs import check_source
    from treetrain.cli.limits import limit_tokens
    from treetrain.cli.models import move_model
    from treetrain.cli.reading import read_template
    from treetrain.cli.reporting import watch_for_report
    from treetrain.cli.sources import without_bars
    from treetrain.cli.tokenizers import load_tokenizer
    from treetrain.errors import RandomModelError
    from treetrain.progress import Progress
    from treetrain.training.display import show_run
    from treetrain.training.output import check_inputs, claim_output
    from treetrain.training.run import run_training
    from treetrain.training.trackers import Trackers

    progress = Progress()
    notes: list[str] = []

    def say(line: str) -> None:
        note = line.startswith("note: ")
        if note:
            notes.append(line.removeprefix("note: "))
        print(line, file=sys.stderr if note or args.json else sys.stdout, flush=True)

    claim_output(Path(config.output), overwrite=config.overwrite, resume=args.resume)
    held_out = config.evaluation.files if config.evaluation is not None else None
    check_inputs(Path(config.output), [*config.data.files, *(held_out or [])])
    if config.model.path is not None:
        # What a name or a config can tell is told before rows are read and weights loaded.
        check_source(
            config.model.path,
            attention=config.model.attention,
            trust_remote_code=config.model.trust_remote_code,
        )
    progress("reading the data")
    tokenizer = load_tokenizer(
        config.tokenizer or config.model.path or "",
        trust_remote_code=config.model.trust_remote_code,
    )
    template = read_template(config.data.chat_template)
    if template is not None:
        # The saved tokenizer must render what was trained.
        tokenizer.chat_template = template
    samples = read_data(config, config.data.files, tokenizer, say)
    samples, limited = limit_tokens(samples, config.data.limit_tokens)
    for note in limited:
        say(f"note: {note}")
    evaluated: list[Sample] = []
    if config.evaluation is not None and config.evaluation.files is not None:
        evaluated = read_data(config, config.evaluation.files, tokenizer, say)
    progress("making the model" if config.model.path is None else "loading the model")
    model = build_model(config, [*samples, *evaluated], tokenizer)
    device = config.device or ("cuda" if torch.cuda.is_available() else "cpu")
    move_model(model, device)
    progress.wipe()
    try:
        with without_bars():
            done = run_training(
                model,
                samples,
                config,
                tokenizer=tokenizer,
                evaluated=evaluated,
                resume=args.resume,
                # Left in reverse order: the bar ends before the report is told.
                watches=(watch_for_report(model, tokenizer, say), Trackers, show_run),
                say=say,
            )
    except RandomModelError as error:
        raise RandomModelError(error.what, _dropout_way_out(model, config)) from error
    if args.json:
        print(json.dumps(_as_json(config, done, notes), ensure_ascii=False))
    return 0


def _as_json(
    config: TrainConfig, done: Sequence[StepMetrics], notes: Sequence[str]
) -> dict[str, Any]:
    """What `--json` prints: where the model is, and the figures of the first and the last step."""
    first, last = (done[0].figures, done[-1].figures) if done else (None, None)
    return {
        "output": config.output,
        "steps": len(done),
        "first": first,
        "last": last,
        "notes": list(notes),
    }


def read_data(
    config: TrainConfig, files: Sequence[str], tokenizer: Any, say: Callable[[str], None]
) -> list[Sample]:
    """Reads files of rows as a configuration says.

    Args:
        config: the configuration.
        files: its files, those that are trained or those that are evaluated.
        tokenizer: tokenizer for rows of text.
        say: prints a line for a person.

    Returns:
        The sequences.
    """
    from treetrain.cli.reading import read_template
    from treetrain.data.report import ReadReport
    from treetrain.data.rows import read_samples

    data = config.data
    samples: list[Sample] = []
    for file in files:
        report = ReadReport(file)
        samples += read_samples(
            file,
            report,
            tokenizer=tokenizer,
            expand=data.expand,
            tools=[] if data.tools == "none" else data.tools,
            select=data.select,
            chat_template=read_template(config.data.chat_template),
            template_variables=data.template_variables,
            unrendered=data.unrendered,
            split=data.split,
            skip_bad_rows=data.skip_bad_rows,
        )
        for note in report.notes():
            say(f"note: {file}: {note}")
    return samples


def build_model(config: TrainConfig, samples: list[Sample], tokenizer: Any) -> Any:
    """Loads the model of a configuration, or makes it, and puts adapters into it.

    Args:
        config: the configuration.
        samples: the sequences; a model from scratch has room for the longest.
        tokenizer: whose vocabulary a model from scratch gets.

    Returns:
        The model, in the wrapper of peft where adapters are asked for.
    """
    model = _build_weights(config, samples, tokenizer)
    if config.model.lora is None:
        return model
    from treetrain.training.adapters import add_lora

    return add_lora(model, config.model.lora, seed=config.seed)


def _build_weights(config: TrainConfig, samples: list[Sample], tokenizer: Any) -> PreTrainedModel:
    from treetrain.cli.models import load_model, make_model

    longest = max(map(len, samples))
    if config.model.path is not None:
        return load_model(
            config.model.path,
            dtype=config.dtype,
            attention=config.model.attention,
            vocabulary=len(tokenizer),
            positions=longest,
            seed=config.seed,
            trust_remote_code=config.model.trust_remote_code,
        )
    scratch = config.model.scratch
    assert scratch is not None
    defaults = {
        "vocab_size": len(tokenizer),
        "max_position_embeddings": max(2048, longest),
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    return make_model(
        scratch.type,
        {**defaults, **scratch.config},
        dtype=config.dtype,
        attention=config.model.attention,
        seed=config.seed,
    )


def _dropout_way_out(model: Any, config: TrainConfig) -> str:
    """What the user of a configuration file can do about a model that draws at random."""
    values = model.config.get_text_config().to_dict()
    rates = [
        name
        for name, value in values.items()
        if "drop" in name and isinstance(value, int | float) and value > 0
    ] or ["the dropout rate"]
    if config.model.scratch is not None:
        return f"set {' and '.join(f'model.scratch.config.{name}' for name in rates)} to 0"
    return f"set {' and '.join(rates)} to 0 in the config.json of model.path, {config.model.path}"
