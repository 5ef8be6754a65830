"""Prefix trees of the kinds that training meets, for the step and attention benchmarks."""

from __future__ import annotations

import numpy as np


def grpo(rng: np.random.Generator, vocabulary: int) -> list[list[int]]:
    """8 answers of 128 tokens to one prompt of 512."""
    prompt = _draw(rng, 512, vocabulary)
    return [prompt + _draw(rng, 128, vocabulary) for _ in range(8)]


def think_strip_comb(rng: np.random.Generator, vocabulary: int) -> list[list[int]]:
    """16 steps after 256 tokens: each samples 48 tokens, of which history keeps a version of 32."""
    return _steps(rng, vocabulary, steps=16, prompt=256, sampled=48, kept=32)


def per_step_chain(rng: np.random.Generator, vocabulary: int) -> list[list[int]]:
    """48 steps after 128 tokens: each samples 8 tokens, after which history grows by 24."""
    return _steps(rng, vocabulary, steps=48, prompt=128, sampled=8, kept=24)


def random_forest(rng: np.random.Generator, vocabulary: int) -> list[list[int]]:
    """60 nodes of 8 to 96 tokens, each below a random earlier one or a root of its own."""
    paths: list[list[int]] = []
    inner: set[int] = set()
    for node in range(60):
        parent = int(rng.integers(-1, node)) if node else -1
        tokens = _draw(rng, int(rng.integers(8, 97)), vocabulary)
        paths.append((paths[parent] if parent >= 0 else []) + tokens)
        inner.add(parent)
    return [path for node, path in enumerate(paths) if node not in inner or rng.random() < 0.3]


def star(rng: np.random.Generator, vocabulary: int, *, leaf: int) -> list[list[int]]:
    """As many leaves of `leaf` tokens as make 1,024, below 512 tokens."""
    stem = _draw(rng, 512, vocabulary)
    return [stem + _draw(rng, leaf, vocabulary) for _ in range(1024 // leaf)]


def single_path(rng: np.random.Generator, vocabulary: int) -> list[list[int]]:
    """One sequence of 4,096 tokens."""
    return [_draw(rng, 4096, vocabulary)]


def long_comb(rng: np.random.Generator, vocabulary: int) -> list[list[int]]:
    """32 steps after 2,048 tokens: each samples 96, of which history keeps a version of 64."""
    return _steps(rng, vocabulary, steps=32, prompt=2048, sampled=96, kept=64)


def _steps(
    rng: np.random.Generator, vocabulary: int, *, steps: int, prompt: int, sampled: int, kept: int
) -> list[list[int]]:
    history = _draw(rng, prompt, vocabulary)
    sequences = []
    for _ in range(steps):
        sequences.append(history + _draw(rng, sampled, vocabulary))
        history = history + _draw(rng, kept, vocabulary)
    return sequences


def _draw(rng: np.random.Generator, length: int, vocabulary: int) -> list[int]:
    return rng.integers(0, vocabulary, length).tolist()
