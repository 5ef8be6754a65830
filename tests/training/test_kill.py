from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HARNESS = Path(__file__).with_name("kill_harness.py")


def run_harness(*words) -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, str(HARNESS), *map(str, words)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def assert_as_unbroken(folder: Path, killed: Path) -> None:
    unbroken = folder / "unbroken"
    last = sorted(path.name for path in unbroken.glob("checkpoint-*"))
    assert sorted(path.name for path in killed.glob("checkpoint-*")) == last
    for name in ("model.safetensors", f"{last[-1]}/model.safetensors", f"{last[-1]}/optimizer.pt"):
        assert (killed / name).read_bytes() == (unbroken / name).read_bytes(), (killed.name, name)
    assert not [path for path in killed.iterdir() if path.name.startswith(".")]
    steps = [
        [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
        for run in (unbroken, killed)
    ]
    assert steps[0] == steps[1]


def test_a_run_that_is_killed_at_random_moments_ends_as_one_that_is_not(tmp_path):
    kills = run_harness("random", tmp_path, 0)
    assert sum(kills.values()) >= 10, kills
    assert_as_unbroken(tmp_path, tmp_path / "killed")


@pytest.mark.slow
def test_a_kill_at_any_call_that_changes_the_disk_leaves_a_run_to_go_on_with(tmp_path):
    calls = run_harness("calls", tmp_path)["calls"]
    assert calls >= 20
    for number in range(1, calls + 1):
        assert_as_unbroken(tmp_path, tmp_path / f"killed-{number}")
