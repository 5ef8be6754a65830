"""Measuring the memory model of a training step, without a byte of the model's weights.

The prepared model runs without values (`models/valueless`), forward and backward through the real
attention, head and loss, and every tensor that lives is counted (`live_bytes`). Nothing is known of
model families, and nothing is extrapolated over layers: all of them run. Over tokens it is: every
stretch of the backward pass, from one parameter's gradient to the next, is a straight line through
two sizes, and the highest line counts, so that a step of any size is as good as one of these two.
It takes a few tenths of a second a layer.

On the CPU the tensors say that they are there, so that attention is the fused kernel in float32 and
the head's chunks are the CPU's. Any other device is one on which attention is matrix products and
the chunks are a GPU's. What kernels hold inside themselves and what an allocator keeps in reserve
is not seen. Experts are measured as one grouped product, whichever implementation the model has.
Chunks of attention are taken as the whole path where a config is measured, and autocast regions are
not measured.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from treetrain.errors import check_type
from treetrain.losses.head_chunks import CPU_CHUNK_BYTES, DEVICE_CHUNK_BYTES
from treetrain.models.guards import is_checkpointing
from treetrain.models.prepared import PreparedModel, find_prepared
from treetrain.models.shape import count_parameters
from treetrain.models.valueless import ValuelessModel, copy_without_values, lay_out
from treetrain.packing.batch import Batch, pack
from treetrain.partitioning.measuring import (
    StepBytes,
    run_adamw,
    run_head,
    run_step,
    size_of,
    with_gradients,
)
from treetrain.partitioning.memory_model import HeadMemory, Line, MemoryModel, Phase, keep_highest
from treetrain.tree.metrics import ModelShape

Optimizer = Literal["adamw", "none"]

#: Tokens of the two trees that are measured.
SIZES = (512, 1024)


def measure_memory(
    source: nn.Module | PreTrainedConfig,
    dtype: torch.dtype | None = None,
    *,
    device: str | None = None,
    optimizer: Optimizer = "adamw",
    gradient_checkpointing: bool = False,
) -> MemoryModel:
    """Measure what a training step of a model takes.

    Args:
        source: a prepared model, which is left as it is, with whatever is frozen, adapted or
            checkpointed in it; or the config of a model that is not loaded.
        dtype: dtype of the weights, for a config.
        device: where the model is to run, for example "cuda"; None: where it is, "cpu" for a
            config.
        optimizer: "adamw" as the trainer makes it, or "none".
        gradient_checkpointing: whether a config's model computes activations again.

    Returns:
        The memory model.

    Raises:
        TypeError: `source` is neither.
        ValueError: `dtype` and `gradient_checkpointing` do not go with `source`, or `optimizer` is
            unknown.
        UnsupportedModelError: the model cannot run without values, or takes no partitions.

    Example:
        >>> from treetrain.models.prepare import prepare
        >>> from treetrain.testing.models import make_tiny_model
        >>> model = make_tiny_model("llama")
        >>> handle = prepare(model)
        >>> memory = measure_memory(model)
        >>> memory.weights == 4 * model.num_parameters() + 16  # and the rotary frequencies
        True
    """  # noqa: DOC502, DOC503 (running without values raises)
    check_type("source", source, (nn.Module, PreTrainedConfig), "a prepared model or a config")
    if optimizer not in ("adamw", "none"):
        raise ValueError(f"optimizer must be 'adamw' or 'none', got {optimizer!r}")
    if isinstance(source, nn.Module):
        if dtype is not None or gradient_checkpointing:
            raise ValueError(
                "dtype and gradient_checkpointing must be left out for a model, which has its own"
            )
        handle = find_prepared(source)
        device = str(handle.model.device) if device is None else device
        model = copy_without_values(handle, host=_is_host(device))
    else:
        if dtype is None:
            raise ValueError("dtype must be given for a config, got None")
        device = "cpu" if device is None else device
        model = lay_out(source, dtype, host=_is_host(device))
        if gradient_checkpointing:
            _checkpoint(model.prepared)
    return _measure(model, device, optimizer)


def _is_host(device: str) -> bool:
    try:
        return torch.device(device).type == "cpu"
    except RuntimeError as error:
        raise ValueError(f"device must be one that torch knows, got {device!r}") from error


def _checkpoint(prepared: PreparedModel) -> None:
    model = prepared.model
    # Renamed in newer releases of transformers.
    getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
    for module in model.modules():
        # Only modules in training checkpoint; the others stay as they are, without dropout.
        if hasattr(module, "gradient_checkpointing"):
            module.training = True


def _measure(model: ValuelessModel, device: str, optimizer: Optimizer) -> MemoryModel:
    inner = model.prepared.model
    parameters = list(inner.parameters())
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    gradients = sum(map(size_of, trainable))
    with model.running(), with_gradients(trainable):
        small, large = (run_step(model, _make_tree(model, size)) for size in SIZES)
    forward, activations = (
        _line(small.tokens, large.tokens, getattr(small, name), getattr(large, name))
        for name in ("forward", "saved")
    )
    states, working = (
        run_adamw(trainable, host=_is_host(device)) if optimizer == "adamw" else (0, 0)
    )
    sizes = list(model.attention.values())
    widths = [one.key_heads * (one.key_size + one.value_size) for one in sizes]
    bytes_each = inner.dtype.itemsize
    wide = max(bytes_each, 4)
    return MemoryModel(
        device=device,
        shape=_measure_shape(model),
        checkpointing=is_checkpointing(inner),
        weights=sum(map(size_of, _distinct([*parameters, *inner.buffers()]))),
        gradients=gradients,
        optimizer=states,
        optimizer_working=working,
        activations=activations,
        key_values=bytes_each * sum(widths),
        accumulators=wide * sum(widths),
        gateway=max(
            # Read in the model's dtype, widened, and the gradients of one rectangle.
            width * (bytes_each if bytes_each < wide else 0)
            + 2 * 2 * one.key_heads * max(one.key_size, one.value_size) * wide
            for one, width in zip(sizes, widths, strict=True)
        ),
        forward=forward,
        phases=keep_highest(_match_phases(small, large), gradients),
        head=_measure_head(model, small.width),
    )


def _match_phases(small: StepBytes, large: StepBytes) -> list[Phase]:
    """Draw a line through each stretch of two steps, or one through their peaks."""
    peaks = zip(small.peaks, large.peaks, small.made, strict=True)
    if len(small.peaks) != len(large.peaks):
        peaks = [(max(small.peaks), max(large.peaks), small.made[-1])]
    return [
        Phase(_line(small.tokens, large.tokens, one, other), made) for one, other, made in peaks
    ]


def _line(first_tokens: int, second_tokens: int, first: float, second: float) -> Line:
    slope = (second - first) / (second_tokens - first_tokens)
    return Line(first - slope * first_tokens, slope)


def _measure_head(model: ValuelessModel, width: int) -> HeadMemory:
    head = model.prepared.head
    with model.running(), torch.no_grad():
        dtype = model.prepared.model.dtype
        row = head(torch.zeros(1, width, dtype=dtype, device=model.device))
    limit = CPU_CHUNK_BYTES if model.device.type == "cpu" else DEVICE_CHUNK_BYTES
    rows = max(2, limit // (row.shape[-1] * row.element_size()))
    half, one, two = (run_head(model, count, width) for count in (rows // 2, rows, 2 * rows))
    per_token = (two - one) / rows
    per_row = (one - half) / (rows - rows // 2) - per_token
    return HeadMemory(one - (per_token + per_row) * rows, per_token, per_row, rows)


def _make_tree(model: ValuelessModel, tokens: int) -> Batch:
    """A tree of four sequences that share the first half of its tokens."""
    prefix, rest = tokens // 2, tokens // 8
    return pack([[0] * prefix + [1 + branch] * rest for branch in range(4)]).to(model.device)


def _measure_shape(model: ValuelessModel) -> ModelShape:
    """Sizes of the decoder, its heads as they were seen to attend."""
    inner = model.prepared.model
    outside = (inner.get_input_embeddings(), model.prepared.head.layer)
    first = next(iter(model.attention.values()))
    return ModelShape(
        parameters=count_parameters(inner, outside),
        layers=len(model.attention),
        heads=first.heads,
        head_size=first.key_size,
    )


def _ids(module: nn.Module | None) -> set[int]:
    return set() if module is None else set(map(id, module.parameters()))


def _distinct(tensors: Iterable[Tensor]) -> list[Tensor]:
    return list({id(tensor): tensor for tensor in tensors}.values())
