"""How tests set up a run: its configuration, what it trains on, and what breaks into it."""

from __future__ import annotations

import numpy as np

from treetrain.data.sample import Sample
from treetrain.testing.trees import tree_family
from treetrain.training.config import TrainConfig

SAMPLES = [Sample(tokens, group=0) for tokens in tree_family()["comb"]]


def make_config(output="out", **values):
    return TrainConfig.model_validate(
        {
            "model": {"path": "unused"},
            "data": {"files": "unused"},
            "output": str(output),
            "reduction": "token_mean",
            "optimizer": {"lr": 1e-2},
            "steps": 3,
            **values,
        }
    )


def make_varied_samples(groups):
    """Sequences with weights and advantages, in so many groups and three trajectories."""
    rng = np.random.default_rng(0)
    return [
        Sample(
            tokens,
            rng.choice([0.0, 0.5, 1.0], len(tokens)),
            group=number % groups,
            trajectory=number % 3,
            advantage=float(rng.normal()),
        )
        for number, tokens in enumerate(tree_family()["uneven"] + tree_family()["comb"])
    ]


def after(step, act):
    """Observers that act when a step has its line, and no checkpoint yet."""

    class Observer:
        def __init__(self, outline):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *what):
            pass

        def tell(self, metrics):
            if metrics.step == step:
                act()

    return (Observer,)
