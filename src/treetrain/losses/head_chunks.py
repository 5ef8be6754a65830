"""Distinct predictors cut into chunks, each with the targets it predicts.

What is computed of a chunk is in `chunked_head`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from treetrain.errors import check_number
from treetrain.losses.head_gradients import autocast_dtype
from treetrain.packing.targets import Targets, TargetTensors

CPU_CHUNK_BYTES = 64 * 2**20
DEVICE_CHUNK_BYTES = 512 * 2**20  # a GPU needs taller chunks to be busy


class HeadLike(Protocol):
    """What is asked of a head."""

    @property
    def parameters(self) -> Sequence[Tensor]:
        """Every parameter the logits depend on, trainable and frozen."""
        ...

    def __call__(self, hidden: Tensor, /) -> Tensor:
        """Logits [n, V], float32 or wider, of hidden states [n, C], row by row."""
        ...


@dataclass(frozen=True, eq=False)
class ChunkWork:
    """What a pass over the chunks needs besides hidden states and parameters.

    Attributes:
        head: the head.
        targets: the targets, on the host.
        tensors: the same targets on the device of the hidden states.
        temperature: what the logits are divided by.
        chunk_tokens: predictors per chunk.
        dtype: dtype of the logits.
        autocast: dtype of the autocast region the forward pass is in, or None.
    """

    head: HeadLike
    targets: Targets
    tensors: TargetTensors
    temperature: float
    chunk_tokens: int
    dtype: torch.dtype
    autocast: torch.dtype | None


@dataclass(frozen=True, eq=False)
class Chunk:
    """A stretch of distinct predictors and the stretch of targets they predict.

    Attributes:
        predictors: the stretch of distinct predictors, n of them.
        targets: the stretch of targets, m of them.
        hidden: hidden states of the predictors, [n, C].
        rows: predictor of each target within the chunk, [m] int64.
        tokens: token id of each target, [m] int64.
    """

    predictors: slice
    targets: slice
    hidden: Tensor
    rows: Tensor
    tokens: Tensor


def check_chunking(temperature: float, chunk_tokens: int | None) -> None:
    """Check what needs no head to be checked.

    Args:
        temperature: what the logits are divided by, above 0.
        chunk_tokens: predictors per chunk, or None.

    Raises:
        ValueError: one is out of range.
    """
    check_number("temperature", temperature)
    if not (temperature > 0 and math.isfinite(temperature)):
        raise ValueError(f"temperature must be a finite number above 0, got {temperature}")
    if chunk_tokens is not None:
        check_number("chunk_tokens", chunk_tokens, whole=True)
    if chunk_tokens is not None and chunk_tokens < 1:
        raise ValueError(f"chunk_tokens must be at least 1, got {chunk_tokens}")


def plan_chunks(
    hidden: Tensor,
    head: HeadLike,
    targets: Targets,
    *,
    tensors: TargetTensors,
    temperature: float,
    chunk_tokens: int | None,
) -> ChunkWork:
    """Check the arguments of a pass through the head and choose the size of its chunks.

    Args:
        hidden: hidden states of the distinct predictors, [P, C].
        head: the head.
        targets: the targets, on the host.
        tensors: the same targets on the device of `hidden`.
        temperature: what the logits are divided by, above 0.
        chunk_tokens: predictors per chunk; None: as many as make logits of 64 MiB, on a device
            other than the CPU 512 MiB.

    Returns:
        The work.

    Raises:
        ValueError: `temperature` or `chunk_tokens` is out of range.
        TypeError: `temperature` or `chunk_tokens` is no number, or the head's logits are narrower
            than float32.
    """
    check_chunking(temperature, chunk_tokens)
    with torch.no_grad():
        row = head(hidden[:0])
    if row.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"head must give logits in float32 or wider, got {row.dtype}")
    least = torch.finfo(row.dtype).max ** -0.5  # below it ordinary logits overflow
    if temperature < least:
        raise ValueError(
            f"temperature must be at least {least:.2g} for logits in {row.dtype}, got {temperature}"
        )
    if chunk_tokens is None:
        limit = CPU_CHUNK_BYTES if hidden.device.type == "cpu" else DEVICE_CHUNK_BYTES
        chunk_tokens = max(1, limit // (row.shape[-1] * row.element_size()))
    return ChunkWork(
        head, targets, tensors, temperature, chunk_tokens, row.dtype, autocast_dtype(hidden.device)
    )


def trainable(head: HeadLike) -> list[Tensor]:
    """Pick the parameters of a head that want a gradient.

    Args:
        head: the head.

    Returns:
        The parameters, in the head's order.
    """
    return [parameter for parameter in head.parameters if parameter.requires_grad]


def cut_chunks(work: ChunkWork, hidden: Tensor) -> Iterator[Chunk]:
    """Cut the distinct predictors into as few chunks as allowed, of equal size to within one.

    A last chunk of a few rows would cost precision: CPU libraries multiply a single row by summing
    over the vocabulary one product after the other.

    Args:
        work: what `plan_chunks` made.
        hidden: hidden states of the distinct predictors, [P, C].

    Yields:
        The chunks, in order.
    """
    offsets = work.targets.target_offsets
    count = -(-len(hidden) // work.chunk_tokens)
    bounds = [len(hidden) * number // count for number in range(count + 1)] if count else [0]
    for start, end in pairwise(bounds):
        targets = slice(int(offsets[start]), int(offsets[end]))
        yield Chunk(
            predictors=slice(start, end),
            targets=targets,
            hidden=hidden[start:end],
            rows=work.tensors.predictor_of_target[targets] - start,
            tokens=work.tensors.tokens[targets],
        )


def sum_rows(chunk: Chunk, values: Tensor) -> Tensor:
    """Sum values of a chunk's targets onto their predictors.

    Args:
        chunk: the chunk.
        values: one value per target of the chunk, [m].

    Returns:
        One sum per predictor of the chunk, [n].
    """
    return values.new_zeros(len(chunk.hidden)).index_add_(0, chunk.rows, values)
