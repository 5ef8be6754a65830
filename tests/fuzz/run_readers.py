"""The readers of what belongs to a run: its configuration, its folder, its checkpoints."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
import yaml
from tests.fuzz.forms import LINES, OBJECT, YAML
from tests.fuzz.promise import Outcome, attempt, expect
from tests.fuzz.row_readers import Reader
from tests.training.runs import make_config

from treetrain.data.sample import Sample
from treetrain.models.prepare import prepare
from treetrain.models.prepared import PreparedModel
from treetrain.report import run_folder
from treetrain.report.inspection import inspect_samples
from treetrain.report.tables import as_json
from treetrain.testing.models import make_tiny_model
from treetrain.training.checkpoint import load_checkpoint
from treetrain.training.checkpoint_folders import MANIFEST, find_checkpoints
from treetrain.training.config import TrainConfig
from treetrain.training.config_file import load_config
from treetrain.training.fingerprint import take_fingerprint
from treetrain.training.output import cut_metrics
from treetrain.training.resume import find_resumable
from treetrain.training.run import run_training
from treetrain.training.trainer import make_optimizer

CONFIG = """\
model: {path: some/folder, lora: {r: 2, alpha: 4.0}}
tokenizer: demo
data: {files: [rows.jsonl], select: {kind: a}, template_variables: {enable_thinking: false}}
evaluation: {share: 0.5, every: 2}
output: out
reduction: token_mean
loss: {name: grpo, old_logprobs: start, clip_low: 0.2, clip_high: 0.2, reference: start,
       kl_coefficient: 0.1}
router: {form: batch, load_balancing: 0.01}
tree: {grouping: all, max_tokens: 100}
optimizer: {lr: 1.0e-3, betas: [0.9, 0.95]}
schedule: {kind: cosine, warmup_steps: 2}
steps: 4
check: {on_difference: off}
trackers: [tensorboard]
"""
SCRATCH = """\
model: {scratch: {type: llama, config: {hidden_size: 8}}}
tokenizer: demo
data: {files: rows.jsonl}
output: out
reduction: 12.5
optimizer: {lr: 1}
epochs: 1
"""
SETTINGS = (
    "optimizer.lr=3e-4",
    "optimizer.betas=[0.9, 0.95]\nsteps=null\nepochs=2",
    "data.select={kind: a}",
    "model.lora=null\ntree.max_tokens=8",
)


def run_readers() -> Iterator[Reader]:
    """Lists the readers of files of runs.

    Yields:
        The readers.
    """
    configs = [CONFIG.encode(), SCRATCH.encode()]
    values = [yaml.safe_load(one) for one in configs]
    yield Reader("configuration", tuple(configs), YAML, values, _check_config)
    settings = tuple(one.encode() for one in SETTINGS)
    yield Reader("--set", settings, None, [], _check_settings)
    files = _finished_run()
    for name, form in (
        ("metrics.jsonl", LINES),
        ("check.json", OBJECT),
        ("inspection.json", OBJECT),
        ("config.yaml", YAML),
    ):
        check = _in_folder(name, files, _report)
        yield Reader(f"run folder: {name}", (files[name],), form, [], check)
    check = _in_folder("metrics.jsonl", files, lambda folder: cut_metrics(folder, 1))
    yield Reader("resume: metrics.jsonl", (files["metrics.jsonl"],), LINES, [], check)
    for name, form in (
        ("trainer_state.json", OBJECT),
        (MANIFEST, OBJECT),
        ("config.json", OBJECT),
        ("generation_config.json", OBJECT),
        ("model.safetensors", None),
        ("optimizer.pt", None),
        ("rng_state.pth", None),
    ):
        inside = f"checkpoint-000002/{name}"
        # Of these files the list knows the size, and a change of it is always refused.
        resize = name not in ("trainer_state.json", MANIFEST)
        check = _in_folder(inside, files, _resume, fit=resize)
        yield Reader(f"checkpoint: {name}", (files[inside],), form, [], check)


def _check_config(data: bytes, folder: Path) -> Outcome:
    path = folder / "run.yaml"
    path.write_bytes(data)
    config, told = attempt(lambda: load_config(path), (path.name,))
    _check_round_trip(config, path)
    return Outcome(told)


def _check_settings(data: bytes, folder: Path) -> Outcome:
    path = folder / "run.yaml"
    path.write_text(CONFIG)
    # The words of a command line are bytes, too.
    words = data.decode(errors="surrogateescape").split("\n")
    config, told = attempt(lambda: load_config(path, words), ("--set", path.name))
    _check_round_trip(config, path)
    return Outcome(told)


def _check_round_trip(config: TrainConfig | None, path: Path) -> None:
    """A run writes its configuration down, and goes on from there."""
    if config is None:
        return
    path.write_text(yaml.safe_dump(config.model_dump(), sort_keys=False), encoding="utf-8")
    again, told = attempt(lambda: load_config(path), (path.name,))
    expect(told is None, f"cannot be read back: {told}")
    expect(repr(again) == repr(config), f"{config!r} is read back as {again!r}")


def _in_folder(
    name: str,
    files: dict[str, bytes],
    read: Callable[[Path], Any],
    *,
    fit: bool = False,
) -> Callable[[bytes, Path], Outcome]:
    def check(data: bytes, folder: Path) -> Outcome:
        found = {**files, name: data}
        if fit:
            manifest = Path(name).with_name(MANIFEST).as_posix()
            sizes = json.loads(files[manifest])
            found[manifest] = json.dumps({**sizes, Path(name).name: len(data)}).encode()
        output = folder / "run"
        for one, content in found.items():
            (output / one).parent.mkdir(parents=True, exist_ok=True)
            (output / one).write_bytes(content)
        names = (Path(name).name, Path(name).parent.name or "report.html")
        _, told = attempt(lambda: read(output), names)
        return Outcome(told)

    return check


def _report(folder: Path) -> None:
    write_plots = run_folder.write_plots
    # Plots take most of the time, and show what the page shows.
    if zlib.crc32((folder / "metrics.jsonl").read_bytes()) % 50:
        run_folder.write_plots = lambda folder, lines: []
    try:
        run_folder.write_report(folder)
    finally:
        run_folder.write_plots = write_plots


def _resume(folder: Path) -> None:
    fingerprint = take_fingerprint(_run_config(folder), _samples(), _samples())
    found = find_resumable(folder, fingerprint, say=lambda line: None)
    assert found is not None
    handle = _prepared()
    optimizer = make_optimizer(handle.model, _run_config(folder).optimizer)
    with torch.random.fork_rng():
        load_checkpoint(found[0], handle, handle.model, optimizer)


def _samples() -> Sequence[Sample]:
    return [Sample([1, 2, 3, 4], group=0), Sample([1, 2, 5], group=0), Sample([7, 8], group=1)]


def _run_config(output: Path) -> TrainConfig:
    evaluation = {"files": ["unused"], "every": 1}
    return make_config(output, steps=2, check={"flat_tokens": 20}, evaluation=evaluation)


@cache
def _prepared() -> PreparedModel:
    return prepare(make_tiny_model("llama", num_hidden_layers=1, vocab_size=16, hidden_size=8))


@cache
def _finished_run() -> dict[str, bytes]:
    """What a run of two steps leaves in its folder."""
    import tempfile

    with tempfile.TemporaryDirectory() as name, torch.random.fork_rng():
        output = Path(name)
        run_training(
            make_tiny_model("llama", num_hidden_layers=1, vocab_size=16, hidden_size=8),
            _samples(),
            _run_config(output),
            evaluated=_samples(),
            watches=(),
            say=lambda line: None,
        )
        inspection = as_json(inspect_samples(_samples()), None, None)
        (output / "inspection.json").write_text(json.dumps(inspection))
        assert len(find_checkpoints(output)) == 1
        paths = [path for path in output.rglob("*") if path.is_file()]
        return {path.relative_to(output).as_posix(): path.read_bytes() for path in paths}
