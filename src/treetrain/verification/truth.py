"""The step in float64, by which narrower dtypes are judged."""

from __future__ import annotations

import copy

import torch
from torch import nn

from treetrain.errors import UnsupportedModelError
from treetrain.models.prepare import prepare
from treetrain.models.prepared import PreparedModel
from treetrain.models.quantised import find_quantised
from treetrain.verification.both_ways import StepResult, StepWork
from treetrain.verification.comparison import TOLERANCES, Comparison, Judge
from treetrain.verification.widened import widen


def run_in_float64(
    prepared: PreparedModel, work: StepWork, targets: int
) -> tuple[StepResult, tuple[Comparison, ...]]:
    """Compute a step with a float64 copy of the model: alone, which is the truth, and on trees.

    Args:
        prepared: the handle of the model, which is left as it is.
        work: the step.
        targets: number of distinct targets of its rows.

    Returns:
        The truth, and the same trees in float64 compared with it.

    Raises:
        UnsupportedModelError: the model holds quantised weights, or is refused in float64.
    """
    if quantised := find_quantised(prepared.model):
        raise UnsupportedModelError(
            f"{quantised[0][0]} holds quantised weights, of which there is no float64 copy "
            f"to judge {computed_dtype(prepared.model)} by; call "
            "verify(..., truth=False, tolerance=...) with the difference that is "
            "allowed, as a part of the largest value"
        )
    with prepared.undone():
        twin = copy.deepcopy(prepared.model).double()
    # Kernels that compute experts in groups exist for narrow dtypes only.
    if hasattr(twin, "set_experts_implementation"):
        twin.set_experts_implementation("eager")
    backends = prepared.backends
    with torch.autocast(twin.device.type, enabled=False), widen(twin):
        handle = prepare(twin, backends[0] if len(backends) == 1 else "auto")
        truth = work.run_separately(handle, "float64 separate")
        tree = work.run_tree(handle, "float64 tree")
    judge = Judge(TOLERANCES[torch.float64], targets)
    return truth, (
        judge.compare("float64 logprobs", tree.logprobs, truth.logprobs),
        judge.compare("float64 gradients", tree.gradients, truth.gradients),
    )


def computed_dtype(model: nn.Module) -> torch.dtype:
    """Find the dtype that a model computes in.

    Args:
        model: the model.

    Returns:
        That of its first parameter, or of a surrounding autocast.
    """
    parameter = next(model.parameters())
    if torch.is_autocast_enabled(parameter.device.type):
        return torch.get_autocast_dtype(parameter.device.type)
    return parameter.dtype
