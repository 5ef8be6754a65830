"""Gradients of partitioned steps against each sequence alone, for models of many kinds.

Tiny random models with windows, sinks, capped scores, experts, latent attention, learned positions,
tied embeddings; a tree cut into 1, 2, 3, 7 and 20 partitions. In float64 with kept activations and
with activations computed again; in float32 beside the error that separate float32 sequences make.
Errors are the largest of all parameters' gradients, relative to the largest gradient.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from harness import Figures, make_parser, run_cases
from torch import Tensor, nn
from transformers import PreTrainedModel

from treetrain import Sample, pack, prepare, sft_terms
from treetrain.partitioning.step import partitioned_step
from treetrain.testing.cuts import cut_into, depth_of_cuts
from treetrain.testing.models import make_tiny_model
from treetrain.verification.baseline import compute_separately, loss_coefficients
from treetrain.verification.widened import widen

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama_tied": {"tie_word_embeddings": True},
    "llama_8_layers": {"num_hidden_layers": 8},
    "mistral": {},
    "gemma2": {},
    "gpt_oss": {},
    "qwen3_moe": {},
    "deepseek_v3": {},
    "gpt2": {},
}
COUNTS = (1, 2, 3, 7, 20)


def draw_samples(seed: int) -> list[Sample]:
    """Sequences whose tree is nine levels deep, with masks, prefixes and equal sequences."""
    rng = np.random.default_rng(seed)
    paths = [rng.integers(3, 60, 5).tolist()]
    for level in range(8):
        parent = paths[-1] if level % 3 else paths[len(paths) // 2]
        paths += [parent + rng.integers(3, 60, int(rng.integers(1, 7))).tolist() for _ in range(2)]
    paths += [paths[4], paths[-1]]
    return [Sample(path, rng.random(len(path)) < 0.7) for path in paths]


def measure(family: str, *, seed: int) -> Figures:
    samples, values = draw_samples(seed), FAMILIES[family]
    kind = family.split("_tied")[0].split("_8")[0]
    exact = make_model(kind, values, torch.float64)
    coefficients = loss_coefficients(samples, "path_mean")
    with widen(exact):
        compute_separately(exact, samples, coefficients)
    truth = take(exact)
    figures: Figures = {"parameters": sum(p.numel() for p in exact.parameters())}
    batch = pack(samples)
    terms = sft_terms(batch, "path_mean")
    handle = prepare(exact)
    cuts = [cut_into(batch.tree, count) for count in COUNTS]
    for partitions in cuts:
        errors: list[float] = []
        for mode in ("keep", "recompute"):
            with widen(exact):
                partitioned_step(exact, batch, partitions, terms, modes=mode)
            errors.append(worst(take(exact), truth))
        figures[f"float64_{partitions.num_partitions}"] = max(errors)
    figures["depth_of_cuts"] = depth_of_cuts(cuts[-1])
    handle.undo()
    plain = make_model(kind, values, torch.float32)
    compute_separately(plain, samples, coefficients)
    figures["float32_separate"] = worst(take(plain), truth)
    prepare(plain)
    partitioned_step(plain, batch, cuts[-1], terms, modes="recompute")
    figures[f"float32_{cuts[-1].num_partitions}"] = worst(take(plain), truth)
    return figures


def make_model(kind: str, values: dict[str, Any], dtype: torch.dtype) -> PreTrainedModel:
    model = make_tiny_model(kind, dtype=torch.float32, **values).to(dtype)  # pyright: ignore[reportArgumentType]
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    return model


def take(model: nn.Module) -> dict[str, Tensor]:
    """Gradients of all parameters in float64; the model is left without."""
    found = {
        name: torch.zeros_like(p, dtype=torch.float64) if p.grad is None else p.grad.double()
        for name, p in model.named_parameters()
    }
    model.zero_grad(set_to_none=True)
    return found


def worst(found: dict[str, Tensor], truth: dict[str, Tensor]) -> float:
    largest = max(float(gradient.abs().max()) for gradient in truth.values())
    return max(float((found[name] - truth[name]).abs().max()) for name in truth) / largest


def main() -> None:
    parser = make_parser("Exactness of partitioned steps.")
    arguments = parser.parse_args()
    cases = {family: partial(measure, family, seed=arguments.seed) for family in FAMILIES}
    run_cases(cases, arguments, parser)


if __name__ == "__main__":
    main()
