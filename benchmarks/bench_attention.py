"""Attention of packed trees against a dense mask and against each sequence alone.

Forward and backward, float32, two threads.

`pair_bound` is the ratio of attention pairs, which no exact method on the same kernel can beat but
by the fixed cost of its calls; `pair_fraction` is the measured speed-up over each sequence alone
held against it. `dense_speedup` is slices over one call with the whole visibility as a mask.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import shapes
import torch
import torch.nn.functional as F
from harness import Figures, make_parser, run_cases, time_in_turns
from torch import Tensor

from treetrain.attention.api import tree_attention
from treetrain.attention.reference import find_visibility
from treetrain.packing.packed_tree import pack_tree
from treetrain.tree.build import build_prefix_tree
from treetrain.tree.metrics import measure_tree

HEADS, KV_HEADS, SIZE, VOCABULARY = 8, 4, 64, 1000


def measure(
    draw: Callable[[np.random.Generator, int], list[list[int]]], *, seed: int, rounds: int
) -> Figures:
    torch.set_num_threads(2)
    sequences = draw(np.random.default_rng(seed), VOCABULARY)
    tree = build_prefix_tree(sequences)
    packed = pack_tree(tree)
    generator = torch.Generator().manual_seed(seed)
    wide = (HEADS, KV_HEADS, KV_HEADS)

    def inputs(tokens: int) -> list[Tensor]:
        # [B, T, H, D] seen as [B, H, T, D], the layout in which a model's projections arrive.
        return [
            torch.randn(1, tokens, heads, SIZE, generator=generator)
            .transpose(1, 2)
            .requires_grad_()
            for heads in wide
        ]

    on_tree = inputs(tree.num_tokens)
    alone = [inputs(len(sequence)) for sequence in sequences]
    mask = torch.where(find_visibility(packed), 0.0, float("-inf"))

    def run_slices() -> None:
        query, key, value = on_tree
        _backward(tree_attention(query, key, value, packed, backend="slices"), on_tree)

    def run_dense() -> None:
        query, key, value = on_tree
        attended = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, enable_gqa=True
        )
        _backward(attended, on_tree)

    def run_alone(tensors: list[Tensor]) -> None:
        query, key, value = tensors
        attended = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=True
        )
        _backward(attended, tensors)

    metrics = measure_tree(tree)
    bound = metrics.attention_pairs_flat / metrics.attention_pairs_tree
    timings = time_in_turns(
        {
            "slices": run_slices,
            "dense": run_dense,
            "alone": [partial(run_alone, tensors) for tensors in alone],
        },
        rounds=rounds,
        slots=max(2, round(bound / 2)),
        settle=True,
    )
    speedup = timings.speedup("alone", "slices")
    return {
        "tree_tokens": tree.num_tokens,
        "leaves": metrics.leaves,
        "pair_bound": bound,
        "speedup": speedup.median,
        "speedup_low": speedup.low,
        "speedup_high": speedup.high,
        "pair_fraction": speedup.median / bound,
        "dense_speedup": timings.speedup("dense", "slices").median,
        "seconds": timings.spread("slices").median,
    }


def _backward(output: Tensor, inputs: list[Tensor]) -> None:
    torch.autograd.grad(output, inputs, torch.ones_like(output))


def main() -> None:
    parser = make_parser("Tree attention against a dense mask and against each sequence alone.")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    draws = {
        "grpo_8x(512+128)": shapes.grpo,
        "think_strip_comb_16": shapes.think_strip_comb,
        "per_step_chain_48": shapes.per_step_chain,
        "random_forest_60": shapes.random_forest,
        **{f"star_leaf_{leaf}": partial(shapes.star, leaf=leaf) for leaf in (8, 16, 32, 64, 128)},
    }
    cases = {
        name: partial(measure, draw, seed=arguments.seed, rounds=arguments.rounds)
        for name, draw in draws.items()
    }
    run_cases(cases, arguments, parser)


if __name__ == "__main__":
    main()
