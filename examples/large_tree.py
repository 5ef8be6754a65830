"""Policy training on a tree that is cut into partitions, as one does where it exceeds memory.

A tiny random model and made-up answers. With a model of your own, `plan_partitions(tree,
measure_memory(model), memory=...)` chooses capacity and modes for a memory in bytes.
"""

from __future__ import annotations

import torch

import treetrain
from treetrain.testing.models import make_tiny_model


def main() -> list[float]:
    """Train ten steps on one tree in partitions.

    Returns:
        The mean log-probability of the rewarded answer before each step, nats.
    """
    prompt = list(range(3, 43))
    answers = [[50, 51, 52], [50, 51, 53], [54, 55], [56]]
    samples = [
        treetrain.Sample(
            prompt + answer,
            weights=[0] * len(prompt) + [1] * len(answer),
            advantage=1.0 if number == 0 else -0.3,
        )
        for number, answer in enumerate(answers)
    ]
    model = make_tiny_model("llama")
    treetrain.prepare(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    batch = treetrain.pack(samples)
    partitions = treetrain.partition_tree(batch.tree, 16)
    rewarded: list[float] = []
    for _ in range(10):
        # Log-probabilities of the policy that sampled, with one path of keys in memory.
        old = treetrain.partitioned_logprobs(model, batch, partitions)
        rewarded.append(float(old[0][-len(answers[0]) :].mean()))
        terms = treetrain.policy_terms(
            batch, "path_mean", objective="ppo", old_logprobs=old, clip_low=0.2, clip_high=0.2
        )
        treetrain.partitioned_step(model, batch, partitions, terms, modes="recompute")
        optimizer.step()
        optimizer.zero_grad()
    print(f"{partitions}: log-probability {rewarded[0]:.3f} -> {rewarded[-1]:.3f}")
    return rewarded


if __name__ == "__main__":
    main()
