"""A reward model on pairs of answers: a pair shares its prompt, which is computed once."""

from __future__ import annotations

import torch
from torch.nn.functional import logsigmoid
from transformers import LlamaConfig, LlamaForSequenceClassification

import treetrain


def main() -> list[float]:
    """Trains a tiny reward model (Bradley-Terry); returns the loss of each step."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        pad_token_id=0,
    )
    config.num_labels = 1
    model = LlamaForSequenceClassification(config)

    # One group, and so one tree, for each pair; chosen and rejected answers take turns.
    prompts = [[1, 5, 6, 7], [1, 5, 8], [1, 9, 9, 4, 3]]
    pairs = [([*prompt, 10 + place], [*prompt, 20, 30]) for place, prompt in enumerate(prompts)]
    batch = treetrain.pack(
        [treetrain.Sample(row, group=place) for place, pair in enumerate(pairs) for row in pair]
    )
    treetrain.prepare(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(10):
        rewards = torch.cat(treetrain.sequence_values(model, batch))
        loss = -logsigmoid(rewards[0::2] - rewards[1::2]).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    for step, value in enumerate(main()):
        print(f"step {step}  loss {value:.4f}")
