"""A plain PyTorch loop over trees: three sequences that share a prefix, ten steps."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import treetrain


def main() -> list[float]:
    """Trains a tiny model; returns the loss of each step."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model = LlamaForCausalLM(config)

    # From here on it is your own loop. A sample may also carry weights, a group, a trajectory.
    treetrain.prepare(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    sequences = [[1, 2, 3, 4, 5], [1, 2, 3, 6, 7], [1, 2, 3, 6, 7, 8, 9]]
    batch = treetrain.pack([treetrain.Sample(tokens) for tokens in sequences])
    losses = []
    for _ in range(10):
        loss = treetrain.sft_loss(model, batch, "token_mean")
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    for step, value in enumerate(main()):
        print(f"step {step}  loss {value:.4f}")
