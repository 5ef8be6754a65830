from __future__ import annotations

import errno
import json
import os
import resource
import shlex
import signal
import threading
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from tests.training.runs import SAMPLES, after, make_config

from treetrain.testing.models import make_tiny_model
from treetrain.training import checkpoint, run
from treetrain.training.checkpoint_folders import check_whole, find_checkpoints
from treetrain.training.holding import hold_output
from treetrain.training.output import check_inputs
from treetrain.training.run import run_training


def train(output, *, model=None, resume=False, watches=(), say=len, **values):
    values = {"steps": 4, "save_every": 1, "check": {"on_difference": "off"}, **values}
    model = model or make_tiny_model("llama")
    config = make_config(output, **values)
    return run_training(model, SAMPLES, config, resume=resume, watches=watches, say=say)


def assert_only_whole(output, steps):
    """The checkpoints of these steps and nothing half-written."""
    assert [path.name for path in find_checkpoints(output)] == [
        f"checkpoint-{s:06d}" for s in steps
    ]
    for path in find_checkpoints(output):
        check_whole(path)
    assert not [path for path in output.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        RuntimeError("[enforce fail at inline_container.cc] . PytorchStreamWriter failed writing"),
        SafetensorError("I/O error: No space left on device (os error 28)"),
    ],
    ids=["os", "torch", "safetensors"],
)
def test_a_full_disk_stops_the_run_and_leaves_the_checkpoints_before(tmp_path, monkeypatch, error):
    original = torch.save
    calls = 0

    def full(values, path):
        nonlocal calls
        calls += 1
        if calls == 5:  # the first of the two files of the third checkpoint
            Path(path).write_bytes(b"half")
            raise error
        original(values, path)

    monkeypatch.setattr(checkpoint.torch, "save", full)
    message = (
        r"the checkpoint of step 3 could not be written: .*; .*checkpoint-000002 is whole; go on "
        r"with: treetrain train .*config\.yaml --resume"
    )
    with pytest.raises(OSError, match=message):
        train(tmp_path / "out")
    assert_only_whole(tmp_path / "out", [1, 2])
    monkeypatch.setattr(checkpoint.torch, "save", original)
    assert [metrics.step for metrics in train(tmp_path / "out", resume=True)] == [3, 4]


def test_a_full_disk_under_the_figures_is_told_too(tmp_path, monkeypatch):
    original = run._write_line

    def full(file, metrics):
        if metrics.step == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        original(file, metrics)

    monkeypatch.setattr(run, "_write_line", full)
    with pytest.raises(OSError, match=r"^No space left on device; .*checkpoint-000001 is whole"):
        train(tmp_path / "out")
    assert_only_whole(tmp_path / "out", [1])


@contextmanager
def files_of_at_most(size):
    """Files of this process cannot grow beyond that many bytes, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    ("size", "name"),
    [(500, r"config\.yaml"), (2500, r"metrics\.jsonl: File too"), (9000, "of step 1 could not")],
)
def test_a_disk_that_fills_up_is_told_by_the_file(tmp_path, size, name):
    every = 1 if size == 9000 else None
    with pytest.raises(OSError, match=name) as caught, files_of_at_most(size):
        train(tmp_path / "out", steps=20, save_every=every)
    assert_only_whole(tmp_path / "out", [])
    if size > 500:
        assert "there is no checkpoint and no model was saved" in str(caught.value)


def test_a_disk_that_fills_up_under_the_model_spares_the_checkpoints(tmp_path):
    train(tmp_path / "out", steps=1, overwrite=True)
    message = r"the model could not be written into .*/out: .*; .*000001 is whole; go on with: "
    with pytest.raises(OSError, match=message), files_of_at_most(9000):
        train(tmp_path / "out", steps=1, resume=True)
    assert_only_whole(tmp_path / "out", [1])
    assert not (tmp_path / "out" / "config.json").exists()
    train(tmp_path / "out", steps=1, resume=True)
    assert (tmp_path / "out" / "config.json").exists()


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_computed(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(run, "prepare", None)
    (tmp_path / "out").mkdir()

    def refuse(**options):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    # Whoever runs the tests may write everywhere.
    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    with pytest.raises(OSError, match=r"must be a folder that can be written, got .*/out: Perm"):
        train(tmp_path / "out")


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (3, r"must be finite, got loss nan .* at step 4; .*; .*checkpoint-000002 is whole; go on"),
        (4, r"must be finite after step 4, got others in model.norm.weight; .*000002 is whole"),
        (1, r"at step 2; .*; the figures so far are in .*, there is no checkpoint and no model"),
    ],
)
def test_a_loss_that_is_not_finite_names_the_step_and_spares_the_checkpoints(
    tmp_path, step, message
):
    model = make_tiny_model("llama")

    @torch.no_grad()
    def poison():
        model.model.norm.weight.fill_(float("inf"))

    with pytest.raises(ValueError, match=message):
        train(tmp_path / "out", model=model, steps=5, save_every=2, watches=after(step, poison))
    assert_only_whole(tmp_path / "out", [2] if step > 1 else [])
    assert not (tmp_path / "out" / "config.json").exists()


def press(*signals):
    for number in signals:
        os.kill(os.getpid(), number)


@pytest.mark.parametrize(
    "signals",
    [
        [signal.SIGINT],
        [signal.SIGTERM],
        [signal.SIGHUP],
        [signal.SIGHUP, signal.SIGHUP],
        [signal.SIGINT, signal.SIGTERM, signal.SIGTERM],
    ],
    ids=lambda signals: "+".join(number.name for number in signals),
)
def test_an_interruption_is_granted_after_the_step_with_a_checkpoint(tmp_path, signals):
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    said = []
    watches = after(2, partial(press, *signals))
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "out", save_every=None, watches=watches, say=said.append)
    assert_only_whole(tmp_path / "out", [2])
    assert "Ctrl-C now stops at once" in said[-2]
    assert "interrupted after step 2" in said[-1]
    assert said[-1].endswith(f"go on with: treetrain train {tmp_path}/out/config.yaml --resume")
    assert [signal.getsignal(number) for number in numbers] == before
    done = train(tmp_path / "out", save_every=None, resume=True)
    assert [metrics.step for metrics in done] == [3, 4]


def break_pipe():
    raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def test_an_interruption_that_nobody_reads_of_still_ends_the_step(tmp_path):
    def say(line):
        if line.startswith("note: interrupted: the step"):
            break_pipe()

    watches = after(2, partial(press, signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "out", save_every=None, watches=watches, say=say)
    assert_only_whole(tmp_path / "out", [2])


def test_a_step_that_nobody_reads_of_is_kept(tmp_path):
    with pytest.raises(BrokenPipeError):
        train(tmp_path / "out", save_every=None, watches=after(2, break_pipe))
    assert_only_whole(tmp_path / "out", [2])
    done = train(tmp_path / "out", resume=True, save_every=None)
    assert [metrics.step for metrics in done] == [3, 4]


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_further_ctrl_c_stops_at_once(tmp_path, first):
    said = []
    signals = [first, signal.SIGINT]
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "out", watches=after(2, partial(press, *signals)), say=said.append)
    assert_only_whole(tmp_path / "out", [1])
    assert "checkpoint-000001 is whole" in said[-1]


def test_a_signal_that_is_ignored_stays_ignored(tmp_path):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        done = train(tmp_path / "out", watches=after(2, partial(press, signal.SIGHUP)))
    finally:
        signal.signal(signal.SIGHUP, before)
    assert len(done) == 4


def test_outside_the_main_thread_signals_are_left_alone(tmp_path):
    done = []
    thread = threading.Thread(target=lambda: done.append(train(tmp_path / "out", steps=1)))
    thread.start()
    thread.join()
    assert len(done[0]) == 1


@pytest.mark.parametrize(("keep", "left"), [(1, [4]), (2, [3, 4]), (None, [1, 2, 3, 4])])
def test_the_newest_checkpoints_stay(tmp_path, keep, left):
    train(tmp_path / "out", keep_last=keep)
    assert_only_whole(tmp_path / "out", left)


def test_checkpoints_come_every_so_often_and_at_the_end(tmp_path):
    train(tmp_path / "out", save_every=3, keep_last=None)
    assert_only_whole(tmp_path / "out", [3, 4])
    train(tmp_path / "two", save_every=None)
    assert_only_whole(tmp_path / "two", [])


def test_an_old_checkpoint_stays_until_the_new_one_is_whole(tmp_path, monkeypatch):
    seen = []
    original = checkpoint.torch.save

    def look(values, path):
        seen.append([found.name[-1] for found in find_checkpoints(tmp_path / "out")])
        original(values, path)

    monkeypatch.setattr(checkpoint.torch, "save", look)
    train(tmp_path / "out", keep_last=1, steps=3)
    assert seen == [[], [], ["1"], ["1"], ["2"], ["2"]]


def test_what_a_killed_run_left_half_written_is_removed(tmp_path):
    train(tmp_path / "out", steps=2)
    for name in (".partial-checkpoint-000003", ".removed-checkpoint-000001", ".partial-model"):
        (tmp_path / "out" / name).mkdir()
        (tmp_path / "out" / name / "model.safetensors").write_bytes(b"half")
    (tmp_path / "out" / ".partial-metrics.jsonl").write_bytes(b"half")
    with open(tmp_path / "out" / "metrics.jsonl", "a") as file:
        file.write('{"step": 3}\n{"step": 4, "lo')
    train(tmp_path / "out", steps=2, resume=True)
    assert_only_whole(tmp_path / "out", [1, 2])
    lines = (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]


def test_checkpoints_of_an_earlier_run_do_not_pass_for_those_of_this_one(tmp_path):
    train(tmp_path / "out", keep_last=None)
    train(tmp_path / "out", overwrite=True, steps=1)
    assert_only_whole(tmp_path / "out", [1])


@pytest.mark.parametrize(
    "name",
    ["config.yaml", "check.json", "loss.png", "model.safetensors", "adapter_config.json"],
)
def test_a_file_of_somebody_else_is_not_written_over_unasked(tmp_path, name):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text("mine")
    with pytest.raises(ValueError, match=rf"or files of the same names, got .*/out with {name};"):
        train(tmp_path / "out")
    with pytest.raises(ValueError, match="must hold a run to resume"):
        train(tmp_path / "out", resume=True)
    assert (tmp_path / "out" / name).read_text() == "mine"
    train(tmp_path / "out", overwrite=True, steps=1)


def test_what_a_run_does_not_name_stays_where_it_is(tmp_path):
    names = (
        ".partial-thesis.doc",
        ".removed-files",
        "checkpoint-7",
        "model-notes.safetensors",
        "tools.json",
    )
    (tmp_path / "out").mkdir()
    for name in names:
        (tmp_path / "out" / name).write_text("mine")
    train(tmp_path / "out", keep_last=1)
    train(tmp_path / "out", resume=True)
    train(tmp_path / "out", overwrite=True, steps=1)
    assert all((tmp_path / "out" / name).read_text() == "mine" for name in names)


def test_data_that_a_run_would_remove_is_refused(tmp_path):
    train(tmp_path / "out", steps=1)
    check_inputs(tmp_path / "out", ["rows.jsonl", str(tmp_path / "out" / "rows.jsonl")])
    for name in ("metrics.jsonl", "checkpoint-000001/rows.jsonl"):
        with pytest.raises(ValueError, match=rf"does not hold the data, got .*out with .*/{name}"):
            check_inputs(tmp_path / "out", [str(tmp_path / "out" / name)])


class AtTheEnd:
    """An observer that does something when the run is left, as the report does."""

    def __init__(self, act):
        self.act = act

    def __call__(self, outline):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *what):
        self.act()

    def tell(self, metrics):
        pass


def test_what_is_shown_at_the_end_cannot_cost_the_model(tmp_path):
    with pytest.raises(BrokenPipeError):
        train(tmp_path / "out", save_every=None, steps=1, watches=(AtTheEnd(break_pipe),))
    assert (tmp_path / "out" / "model.safetensors").exists()
    assert (tmp_path / "out" / "config.json").exists()


@pytest.mark.parametrize("every", [None, 1])
def test_what_ends_a_run_after_its_model_was_saved_does_not_deny_it(tmp_path, every):
    said = []
    twice = AtTheEnd(partial(press, signal.SIGINT, signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "out", save_every=every, steps=1, watches=(twice,), say=said.append)
    assert said[-1].endswith(f"after step 1: the trained model is in {tmp_path / 'out'}")

    def fill_disk():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match=r"^No space left on device; the trained model is in .*/two$"):
        train(tmp_path / "two", save_every=every, steps=1, watches=(AtTheEnd(fill_disk),))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interruption_after_the_last_step_lets_the_run_end(tmp_path, number):
    before = signal.getsignal(number)
    press = AtTheEnd(lambda: os.kill(os.getpid(), number))
    assert len(train(tmp_path / "out", save_every=None, steps=1, watches=(press,))) == 1
    assert (tmp_path / "out" / "config.json").exists()
    assert signal.getsignal(number) == before


def test_two_runs_do_not_share_a_folder(tmp_path):
    train(tmp_path / "out", steps=1)
    message = r"no run is going on, got .*/out, which another process holds"
    with hold_output(tmp_path / "out"):
        for values in ({"resume": True}, {"overwrite": True}):
            with pytest.raises(ValueError, match=message):
                train(tmp_path / "out", steps=1, **values)
    train(tmp_path / "out", steps=1, resume=True)


def test_the_command_to_go_on_with_can_be_pasted(tmp_path):
    said = []
    with pytest.raises(KeyboardInterrupt):
        train(
            tmp_path / "my $runs", watches=after(2, partial(press, signal.SIGINT)), say=said.append
        )
    words = shlex.split(said[-1].partition("go on with: ")[2])
    assert words == ["treetrain", "train", f"{tmp_path}/my $runs/config.yaml", "--resume"]
