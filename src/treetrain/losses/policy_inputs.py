"""Inputs of policy losses, checked; those per sequence laid out as flat edges on the host."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np

from treetrain.data.sample import Sample
from treetrain.errors import check_number, check_type
from treetrain.packing.batch import Batch
from treetrain.packing.targets import Floats
from treetrain.tree.prefix_tree import Ints

Objective = Literal["plain", "ppo", "grpo"]

#: Log-probabilities are at most 0, and above it by rounding only.
_HIGHEST_LOGPROB = 1.0


def check_inputs(
    objective: str,
    *,
    ratio_inputs: dict[str, Any],
    kl_inputs: dict[str, Any],
    entropy_coefficient: float,
) -> None:
    """Refuse an objective that lacks an input it needs, or is given one it does not use.

    Args:
        objective: "plain", "ppo" or "grpo".
        ratio_inputs: `old_logprobs`, `clip_low` and `clip_high` by name.
        kl_inputs: `reference_logprobs` and `kl_coefficient` by name.
        entropy_coefficient: weight of the entropy bonus.

    Raises:
        ValueError: it does, or a number is out of range.
    """
    if objective not in get_args(Objective):
        raise ValueError(f"objective must be 'plain', 'ppo' or 'grpo', got {objective!r}")
    old_logprobs = ratio_inputs["old_logprobs"]
    if isinstance(old_logprobs, str) and old_logprobs not in ("current", "recorded"):
        raise ValueError(
            f"old_logprobs must be 'current', 'recorded' or one row per sequence, got "
            f"{old_logprobs!r}"
        )
    for name, number in (
        ("kl_coefficient", kl_inputs["kl_coefficient"]),
        ("entropy_coefficient", entropy_coefficient),
        ("clip_low", ratio_inputs["clip_low"]),
        ("clip_high", ratio_inputs["clip_high"]),
    ):
        if number is not None:
            check_number(name, number)
        if number is not None and not math.isfinite(number):
            raise ValueError(f"{name} must be finite, got {number}")
    for name, value in ratio_inputs.items():
        if objective == "plain" and value is not None:
            raise ValueError(f"{name} must not be given for objective 'plain'; choose 'ppo'")
        if objective != "plain" and value is None:
            raise ValueError(
                f"{name} must be given for objective {objective!r}, got None"
                + (
                    "; 'current' for samples of the very policy, 'recorded' for the samples' own"
                    * (name == "old_logprobs")
                )
            )
    for name in ("clip_low", "clip_high"):
        value = ratio_inputs[name]
        if value is not None and not value >= 0:
            raise ValueError(f"{name} must be at least 0, got {value}")
    missing = [name for name, value in kl_inputs.items() if value is None]
    if len(missing) == 1 or (objective == "grpo" and missing):
        raise ValueError(
            f"{missing[0]} must be given, got None; reference_logprobs and kl_coefficient belong "
            f"together, and objective 'grpo' needs them ('ppo' does without)"
        )


def read_advantages(batch: Batch, advantages: Sequence[Any] | None, trained: Ints) -> Floats:
    """Read the advantage of each trained edge.

    Args:
        batch: the batch.
        advantages: for each sequence a number or one per edge, [max(L - 1, 0)]; None: the samples'
            own, a number or one per token, [L].
        trained: flat edges that are trained, [n].

    Returns:
        One advantage per trained edge, [n] float64.

    Raises:
        ValueError: a sequence that trains something has no advantage.
    """
    if advantages is not None:
        return read_edges(batch, "advantages", advantages, trained, numbers=True)
    rows: list[Any] = []
    offsets = batch.targets.sequence_offsets
    needed = np.diff(np.searchsorted(trained, offsets))
    for index, sample in enumerate(batch.samples):
        value = sample.advantage
        if value is None:
            if needed[index]:
                raise ValueError(
                    f"advantages must be given, got none for samples[{batch.indices[index]}]"
                    f"{_at(sample)}; set Sample.advantage, the field 'advantage' of a row, or pass "
                    "advantages="
                )
            value = 0.0
        rows.append(value if np.ndim(value) == 0 else np.asarray(value)[1:])
    return read_edges(batch, "advantages", rows, trained, numbers=True)


def read_old_logprobs(batch: Batch, old_logprobs: Any, trained: Ints) -> Floats:
    """Read the log-probability of each trained edge under the policy that sampled it.

    Args:
        batch: the batch.
        old_logprobs: for each sequence one per edge, [max(L - 1, 0)]; "recorded": the samples' own,
            one per token, [L].
        trained: flat edges that are trained, [n].

    Returns:
        One log-probability per trained edge, [n] float64, nats.

    Raises:
        ValueError: a sequence that trains something has none recorded.
    """
    if not isinstance(old_logprobs, str):
        return read_edges(batch, "old_logprobs", old_logprobs, trained)
    rows: list[Any] = []
    offsets = batch.targets.sequence_offsets
    needed = np.diff(np.searchsorted(trained, offsets))
    for index, sample in enumerate(batch.samples):
        if sample.logprobs is None and needed[index]:
            raise ValueError(
                f"old_logprobs must be given, got none recorded for "
                f"samples[{batch.indices[index]}]{_at(sample)}; set Sample.logprobs, the field "
                "'logprobs' of a row, or pass rows"
            )
        edges = int(offsets[index + 1] - offsets[index])
        rows.append(np.zeros(edges) if sample.logprobs is None else sample.logprobs[1:])
    return read_edges(batch, "old_logprobs", rows, trained)


def read_edges(
    batch: Batch, name: str, rows: Any, trained: Ints, *, numbers: bool = False
) -> Floats:
    """Read one value per trained edge from one row per sequence.

    Args:
        batch: the batch.
        name: name of the argument, for messages.
        rows: for each sequence one value per edge, [max(L - 1, 0)]: list, array or tensor.
        trained: flat edges that are trained, [n].
        numbers: whether a row may be one number for all of its edges.

    Returns:
        One value per trained edge, [n] float64.

    Raises:
        TypeError: rows have no order, or one holds no numbers.
        ValueError: rows are no sequence, there is not one row per sequence or one value per edge,
            or a value of a trained edge is not finite, or no log-probability; names the first.
    """  # noqa: DOC503 (the functions below raise TypeError)
    if isinstance(rows, str | Mapping):
        raise ValueError(f"{name} must be one row per sequence, got a {type(rows).__name__}")
    if not hasattr(rows, "__array__"):
        check_type(name, rows, Sequence, "one row per sequence")
    elif np.ndim(rows) == 0:
        raise TypeError(f"{name} must be one row per sequence, got {type(rows).__name__}")
    if len(rows) != batch.num_sequences:
        raise ValueError(
            f"{name} must have one entry per sequence of the batch, {batch.num_sequences}, got "
            f"{len(rows)}; pick those of batch.indices"
        )
    offsets = batch.targets.sequence_offsets
    values = np.empty(len(batch.targets.edge_weights))
    for index, row in enumerate(rows):
        array = _to_float64(row, f"{name}[{index}]")
        length = int(offsets[index + 1] - offsets[index])
        if array.shape != (length,) and not (numbers and array.ndim == 0):
            raise ValueError(
                f"{name}[{index}] must have one value per edge, [{length}]"
                f"{' or be a number' if numbers else ''}, got shape {array.shape}; entry i belongs "
                f"to the token at place i + 1"
            )
        values[offsets[index] : offsets[index + 1]] = array
    chosen = values[trained]
    demands = [(~np.isfinite(chosen), "finite where the token is trained")]
    if not numbers:
        demands.append((chosen > _HIGHEST_LOGPROB, "logarithms of probabilities, at most 0"))
    for broken, demand in demands:
        for place in np.flatnonzero(broken)[:1]:
            edge = int(trained[place])
            index = int(np.searchsorted(offsets, edge, side="right")) - 1
            raise ValueError(
                f"{name}[{index}]{_at(batch.samples[index])} must be {demand}, got {values[edge]} "
                f"at index {edge - offsets[index]}"
            )
    return chosen


def _at(sample: Sample) -> str:
    return f" ({sample.source})" if sample.source else ""


def _to_float64(row: Any, name: str) -> Floats:
    try:
        if hasattr(row, "detach"):
            row = row.detach().cpu()
            row = (row.double() if row.is_floating_point() else row).numpy()
        array = np.asarray(row, dtype=np.float64)
        kinds = (
            set(map(type, row)) if isinstance(row, list | tuple) else {np.asarray(row).dtype.type}
        )
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{name} must hold numbers, got {row!r:.60}") from error
    # numpy reads numbers off all of these.
    if isinstance(row, np.ma.MaskedArray) or any(
        issubclass(kind, str | bytes | bool | np.bool_) for kind in kinds
    ):
        raise TypeError(f"{name} must hold numbers, got {row!r:.60}")
    return array
