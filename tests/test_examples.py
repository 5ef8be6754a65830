from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def load_example(path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_plain_loop_learns_its_sequences() -> None:
    losses = load_example(EXAMPLES / "plain_loop.py").main()
    assert len(losses) == 10
    assert losses[-1] < losses[0] / 2


def test_reward_model_learns_its_pairs() -> None:
    losses = load_example(EXAMPLES / "reward_model.py").main()
    assert len(losses) == 10
    assert losses[-1] < losses[0] / 2


def test_large_tree_learns_the_rewarded_answer() -> None:
    rewarded = load_example(EXAMPLES / "large_tree.py").main()
    assert len(rewarded) == 10
    assert rewarded[-1] > rewarded[0] + 0.5


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_every_example_has_a_test(path: Path) -> None:
    assert f'"{path.name}"' in Path(__file__).read_text(encoding="utf-8")
