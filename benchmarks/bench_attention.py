"""Attention of packed trees against a dense mask and against each sequence alone.

Forward and backward, float32, two threads.

`pair_bound` is the ratio of attention pairs, which no exact method on the same kernel can beat but
by the fixed cost of its calls; `pair_fraction` is the measured speed-up over each sequence alone
held against it. `dense_speedup` is slices over one call with the whole visibility as a mask.

`window_cost_ratio` is the time of slices with a window over that of slices without one;
`window_pair_ratio` is the same of the pairs that are visible, which no window's cost can be below
but by what shorter calls save.
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
WIDE = (HEADS, KV_HEADS, KV_HEADS)
WINDOW = 256


def measure(
    draw: Callable[[np.random.Generator, int], list[list[int]]], *, seed: int, rounds: int
) -> Figures:
    torch.set_num_threads(2)
    sequences = draw(np.random.default_rng(seed), VOCABULARY)
    tree = build_prefix_tree(sequences)
    packed = pack_tree(tree)
    generator = torch.Generator().manual_seed(seed)

    def inputs(tokens: int) -> list[Tensor]:
        return [_draw_input(heads, tokens, generator) for heads in WIDE]

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


def measure_window(
    draw: Callable[[np.random.Generator, int], list[list[int]]],
    *,
    window: int,
    seed: int,
    rounds: int,
) -> Figures:
    torch.set_num_threads(2)
    tree = build_prefix_tree(draw(np.random.default_rng(seed), VOCABULARY))
    packed = pack_tree(tree)
    generator = torch.Generator().manual_seed(seed)
    tensors = [_draw_input(heads, tree.num_tokens, generator) for heads in WIDE]
    query, key, value = tensors

    def run(own_window: int | None) -> None:
        attended = tree_attention(query, key, value, packed, backend="slices", window=own_window)
        _backward(attended, tensors)

    timings = time_in_turns(
        {"windowed": partial(run, window), "full": partial(run, None)}, rounds=rounds, settle=True
    )
    cost = timings.speedup("windowed", "full")
    depths = tree.depth_positions
    return {
        "tree_tokens": tree.num_tokens,
        "window": window,
        "window_cost_ratio": cost.median,
        "window_cost_low": cost.low,
        "window_cost_high": cost.high,
        "window_pair_ratio": float(np.minimum(depths + 1, window).sum() / (depths + 1).sum()),
        "seconds": timings.spread("windowed").median,
    }


def _draw_input(heads: int, tokens: int, generator: torch.Generator) -> Tensor:
    # [B, T, H, D] seen as [B, H, T, D], the layout in which a model's projections arrive.
    drawn = torch.randn(1, tokens, heads, SIZE, generator=generator)
    return drawn.transpose(1, 2).requires_grad_()


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
    windowed = {"window_path_4096": shapes.single_path, "window_comb_4096": shapes.long_comb}
    for name, draw in windowed.items():
        cases[name] = partial(
            measure_window, draw, window=WINDOW, seed=arguments.seed, rounds=arguments.rounds
        )
    run_cases(cases, arguments, parser)


if __name__ == "__main__":
    main()
