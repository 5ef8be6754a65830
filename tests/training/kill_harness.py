"""Trains in children of a process that has loaded torch once, and kills them with SIGKILL.

    python kill_harness.py random FOLDER SEED    at random moments, resumed until the run is done
    python kill_harness.py calls FOLDER          before each call of its last steps that changes the
                                                 disk, resumed after each kill

FOLDER/unbroken is the run without a kill, FOLDER/killed* are the others. Prints one JSON object:
how often children were killed, and for random moments what they were doing.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import torch
from runs import make_config

from treetrain.data.sample import Sample
from treetrain.testing.models import make_tiny_model
from treetrain.testing.trees import tree_family
from treetrain.training.run import run_training

SAMPLES = [
    Sample(tokens, group=number % 3) for number, tokens in enumerate(tree_family()["uneven"])
]
STEPS = 36
#: Calls of a checkpoint that change what is on the disk.
CALLS = [(os, "fsync"), (os, "rename"), (os, "unlink"), (os, "rmdir"), (torch, "save")]


def train(folder: Path) -> None:
    config = make_config(
        folder,
        schedule={"kind": "linear"},
        steps=STEPS,
        save_every=1,
        keep_last=2,
        tree={"max_tokens": 12},
        check={"on_difference": "off"},
    )
    resume = any((folder / name).exists() for name in ("metrics.jsonl", "config.json"))
    # A smaller model than usual: what is tested is how it is written.
    model = make_tiny_model("llama", num_hidden_layers=1)
    run_training(model, SAMPLES, config, resume=resume, watches=(), say=len)


def start_child(folder: Path, die_at: int | None = None) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        sys.stderr = sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (until the child ends)
        if die_at is not None:
            die_in_call(die_at)
        train(folder)
        code = 0
    finally:
        os._exit(code)


def die_in_call(number: int) -> None:
    """Be killed just before the call of this number that changes the disk."""
    count = 0

    def wrap(original):
        def counted(*args, **options):
            nonlocal count
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*args, **options)

        return counted

    for module, name in CALLS:
        setattr(module, name, wrap(getattr(module, name)))


def wait(pid: int) -> int:
    return os.waitpid(pid, 0)[1]


def look(folder: Path) -> str:
    """What the killed child was doing, as the folder shows it."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    for part in (".partial-checkpoint", ".removed-checkpoint", ".partial"):
        if any(name.startswith(part) for name in names):
            return part
    return "computing" if names else "starting"


def newest(folder: Path) -> int:
    return max((int(path.name[-6:]) for path in folder.glob("checkpoint-*")), default=0)


def kill_at_random(folder: Path, chance: random.Random, step_seconds: float) -> dict[str, int]:
    """Kill a run again and again, after none to two more checkpoints and a random while."""
    found: dict[str, int] = {}
    while True:
        wanted = newest(folder) + chance.randrange(3)
        # Some are killed while they start, the others within two steps.
        delay = chance.uniform(0, 2) * step_seconds
        pid = start_child(folder)
        done = (0, 0)
        while newest(folder) < wanted and done[0] == 0:
            time.sleep(0.001)
            done = os.waitpid(pid, os.WNOHANG)
        time.sleep(delay)
        if not done[0]:
            done = os.waitpid(pid, os.WNOHANG)
        if done[0]:
            assert done[1] == 0, f"a resumed run failed: {done[1]}"
            return found
        os.kill(pid, signal.SIGKILL)
        wait(pid)
        what = look(folder)
        found[what] = found.get(what, 0) + 1


def kill_at_each_call(folder: Path) -> dict[str, int]:
    """Kill the last step and the saving of the model before their first call, their second, ..."""
    begun = folder / "begun"
    assert wait(start_child(folder / "unbroken")) == 0
    shutil.copytree(folder / "unbroken", begun)
    shutil.rmtree(begun / f"checkpoint-{STEPS:06d}")
    for number in range(1, 1000):
        place = folder / f"killed-{number}"
        shutil.copytree(begun, place)
        status = wait(start_child(place, die_at=number))
        if status == 0:
            shutil.rmtree(begun)
            return {"calls": number - 1}
        assert status == signal.SIGKILL, status
        assert wait(start_child(place)) == 0, f"not resumed after a kill at call {number}"
    raise AssertionError("the run has no end")


def main() -> None:
    torch.set_num_threads(1)
    way, folder = sys.argv[1], Path(sys.argv[2])
    if way == "calls":
        print(json.dumps(kill_at_each_call(folder)))
        return
    begin = time.monotonic()
    assert wait(start_child(folder / "unbroken")) == 0
    step_seconds = (time.monotonic() - begin) / STEPS
    chance = random.Random(int(sys.argv[3]))
    print(json.dumps(kill_at_random(folder / "killed", chance, step_seconds)))


if __name__ == "__main__":
    main()
