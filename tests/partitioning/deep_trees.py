"""Trees with many cuts, and gradients compared with those of separate sequences."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from treetrain.data.sample import Sample


def draw_deep_samples(seed: int = 0, vocabulary: int = 60) -> list[Sample]:
    """Sequences whose tree is 9 levels deep, with prefixes, equal ones, masks and two groups."""
    rng = np.random.default_rng(seed)
    paths: list[list[int]] = [rng.integers(3, vocabulary, 5).tolist()]
    for level in range(8):
        parent = paths[-1] if level % 3 else paths[len(paths) // 2]
        for _ in range(2):
            length = int(rng.integers(1, 7))
            paths.append(parent + rng.integers(3, vocabulary, length).tolist())
    paths += [paths[4], paths[-1], []]
    samples = []
    for number, path in enumerate(paths):
        weights = (rng.random(len(path)) < 0.7) * rng.choice([0.5, 1.0, 2.0], len(path))
        advantage = rng.normal(size=len(path)) if number % 2 else float(rng.normal())
        samples.append(
            Sample(
                path,
                weights,
                group="b" if number % 7 == 3 else "a",
                trajectory=number % 4 or None,
                advantage=advantage,
            )
        )
    return samples


def take(model: nn.Module) -> dict[str, Tensor]:
    """Gradients of all parameters, zeros where there is none; the model is left without."""
    found = {
        name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
        for name, p in model.named_parameters()
    }
    model.zero_grad(set_to_none=True)
    return found


def worst(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Largest difference over the largest gradient."""
    scale = max(float(x.abs().max()) for x in expected.values())
    assert scale > 0
    assert found.keys() == expected.keys()
    return max(float((found[n].double() - expected[n].double()).abs().max()) for n in found) / scale


def distance(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Length of the difference of all gradients together, over the length of the expected ones."""
    squares = [float((found[n].double() - expected[n]).square().sum()) for n in expected]
    return (sum(squares) / sum(float(x.square().sum()) for x in expected.values())) ** 0.5
