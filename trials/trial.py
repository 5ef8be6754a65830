"""One model type on trial: a tiny random model on a tree against each sequence alone.

The baseline is made by a model nobody has prepared, from the list of sequences.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from treetrain import (
    PreparedModel,
    UnsupportedModelError,
    build_prefix_tree,
    find_prepared,
    prepare,
)
from treetrain.attention.names import MASK
from treetrain.packing.packed_tree import pack_tree
from treetrain.testing.models import make_tiny_model
from treetrain.testing.tiny_configs import make_tiny_config
from treetrain.testing.trees import random_forest
from treetrain.verification.widened import widen

#: Largest difference allowed, as a share of the largest logit or gradient.
TOLERANCE = 1e-5
#: The same in float64.
TOLERANCE_WIDE = 1e-10
#: More parameters than a tiny model has: its config was not understood.
MOST_PARAMETERS = 20_000_000
#: The first ids stand for padding, ends and pictures in tiny configs.
FIRST_ID = 4


@dataclass(frozen=True)
class Outcome:
    """What came out for one model type.

    Attributes:
        status: "exact"; "exact_4d", exact as one dense mask; "refused"; "not_built"; "wrong".
        logits_error: largest difference of logits, as a share of the largest; None if not run.
        gradient_error: largest difference of gradients, as a share of the largest; None if not run.
        reason: why it was refused or not built, or what float64 says where float32 is further off.
    """

    status: str
    logits_error: float | None = None
    gradient_error: float | None = None
    reason: str = ""


def make_sequences(seed: int) -> list[list[int]]:
    """Make the trial's tree: two roots, three nodes deep and more, paths longer than 4 tokens."""
    rng = np.random.default_rng(seed)
    forest = random_forest(rng, roots=2, depth=4, node_tokens=5, vocabulary=64 - FIRST_ID + 1)
    return [[token + FIRST_ID - 1 for token in sequence] for sequence in forest]


def try_type(model_type: str, seed: int = 0) -> Outcome:
    """Try one model type."""
    warnings.simplefilter("ignore")
    sequences = make_sequences(seed)
    try:
        model = make_model(model_type, seed)
        alone = run_alone(model, sequences)
    except Exception as error:  # noqa: BLE001 (whatever a tiny config runs into is the reason)
        return Outcome("not_built", reason=describe(error))
    expected = take_gradients(model, alone)
    try:
        prepared = prepare(model)
        errors = compare_ways(prepared, sequences, alone, expected=expected)
        reason = ""
        if max(errors) > TOLERANCE:
            # Float32 may be off by more than that on either way: float64 tells a fault from it.
            wide = compare_in_float64(model, sequences)
            reason = f"in float64: logits {wide[0]:.1e}, gradients {wide[1]:.1e}"
            if max(wide) > TOLERANCE_WIDE:
                return Outcome("wrong", *errors, reason)
    except UnsupportedModelError as error:
        return Outcome("refused", reason=str(error))
    except Exception as error:  # noqa: BLE001 (an error that is no refusal is a fault)
        return Outcome("wrong", reason=describe(error))
    return Outcome("exact_4d" if prepared.backends == [MASK] else "exact", *errors, reason)


def compare_ways(
    prepared: PreparedModel,
    sequences: list[list[int]],
    alone: list[Tensor],
    *,
    expected: dict[str, Tensor],
) -> tuple[float, float]:
    """Errors of logits and gradients on the tree."""
    ours = run_tree(prepared, sequences)
    gradients = take_gradients(prepared.model, ours)
    return (
        compare(ours, alone),
        compare(list(gradients.values()), [expected[name] for name in gradients]),
    )


def compare_in_float64(model: PreTrainedModel, sequences: list[list[int]]) -> tuple[float, float]:
    """The same of the model in float64 throughout."""
    find_prepared(model).undo()
    model.double()
    # Kernels that compute experts in groups exist for narrow dtypes only.
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    with widen(model):
        alone = run_alone(model, sequences)
        expected = take_gradients(model, alone)
        return compare_ways(prepare(model), sequences, alone, expected=expected)


def make_model(model_type: str, seed: int) -> PreTrainedModel:
    """Make the tiny random model, in training mode; its config holds no dropout."""
    config = make_tiny_config(model_type)
    with torch.device("meta"):
        count = sum(part.numel() for part in AutoModelForCausalLM.from_config(config).parameters())
    if count > MOST_PARAMETERS:
        raise ValueError(f"the tiny config gives {count:,} parameters")
    return make_tiny_model(model_type, seed=seed).train()


def run_alone(model: PreTrainedModel, sequences: list[list[int]]) -> list[Tensor]:
    """Logits of each sequence alone."""
    return [
        model(input_ids=torch.tensor([sequence]), use_cache=False).logits[0]
        for sequence in sequences
    ]


def run_tree(prepared: PreparedModel, sequences: list[list[int]]) -> list[Tensor]:
    """Logits of each sequence from one tree call."""
    tree = build_prefix_tree(sequences)
    logits = prepared.head(prepared.hidden_states(pack_tree(tree)))
    return [logits[torch.tensor(tree.positions(number))] for number in range(len(sequences))]


def take_gradients(model: PreTrainedModel, logits: list[Tensor]) -> dict[str, Tensor]:
    """Gradients of all parameters, of a loss in which each logit has a weight of its own."""
    model.zero_grad()
    generator = torch.Generator().manual_seed(7)
    weights = [torch.randn(one.shape, generator=generator) for one in logits]
    torch.stack(
        [(one * weight).sum() for one, weight in zip(logits, weights, strict=True)]
    ).sum().backward()
    return {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }


def compare(ours: list[Tensor], others: list[Tensor]) -> float:
    """Largest difference as a share of the largest value."""
    largest = max(float(other.detach().abs().max()) for other in others)
    error = max(
        float((one - other).detach().abs().max()) for one, other in zip(ours, others, strict=True)
    )
    return error / largest if math.isfinite(error) and largest > 0 else math.inf


def describe(error: Exception) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
