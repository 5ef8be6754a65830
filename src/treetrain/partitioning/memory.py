"""Measuring the memory model of a training step, without a byte of the model's weights.

The prepared model runs without values (`models/valueless`), forward and backward through the real
attention, head and loss, and every tensor that lives is counted (`live_bytes`). Nothing is known of
model families, and nothing is extrapolated over layers: all of them run. Over tokens it is: every
stretch of the backward pass, from one parameter's gradient to the next, is a straight line through
two sizes, and the highest line counts, so that a step of any size is as good as one of these two. It
takes a few tenths of a second a layer.

On the CPU the tensors say that they are there, so that attention is the fused kernel in float32 and
the head's chunks are the CPU's. Any other device is one on which attention is matrix products and
the chunks are a GPU's. What kernels hold inside themselves and what an allocator keeps in reserve
is not seen. Experts are measured as one grouped product, whichever implementation the model has;
windows are taken as the whole path. Autocast regions are not measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from treetrain.errors import check_type
from treetrain.losses.chunked_head import fused_head
from treetrain.losses.head_chunks import CPU_CHUNK_BYTES, DEVICE_CHUNK_BYTES
from treetrain.models.prepared import PreparedModel, find_prepared
from treetrain.models.valueless import ValuelessModel, copy_without_values, lay_out
from treetrain.packing.batch import Batch, pack
from treetrain.partitioning.live_bytes import LiveBytes
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
    return torch.device(device).type == "cpu"


def _checkpoint(prepared: PreparedModel) -> None:
    prepared.model.gradient_checkpointing_enable()
    for module in prepared.model.modules():
        # Only modules in training checkpoint; the others stay as they are, without dropout.
        if hasattr(module, "gradient_checkpointing"):
            module.training = True


def _measure(model: ValuelessModel, device: str, optimizer: Optimizer) -> MemoryModel:
    inner = model.prepared.model
    parameters = list(inner.parameters())
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    gradients = sum(map(_size, trainable))
    with model.running(), _with_gradients(trainable):
        small, large = (_run_step(model, _make_tree(model, size)) for size in SIZES)
    forward, activations = (
        _line(small.tokens, large.tokens, getattr(small, name), getattr(large, name))
        for name in ("forward", "saved")
    )
    states, working = _measure_adamw(trainable, device) if optimizer == "adamw" else (0, 0)
    sizes = list(model.attention.values())
    widths = [one.key_heads * (one.key_size + one.value_size) for one in sizes]
    bytes_each = inner.dtype.itemsize
    wide = max(bytes_each, 4)
    return MemoryModel(
        device=device,
        shape=_measure_shape(model),
        checkpointing=small.checkpoints,
        weights=sum(map(_size, _distinct([*parameters, *inner.buffers()]))),
        gradients=gradients,
        optimizer=states,
        optimizer_working=working,
        activations=activations,
        key_values=bytes_each * sum(widths),
        accumulators=wide * sum(widths),
        gateway=max(
            # Read in the model's dtype, widened, its gradients, and those of one rectangle.
            width * (bytes_each if bytes_each < wide else 0)
            + 3 * 2 * one.key_heads * max(one.key_size, one.value_size) * wide
            for one, width in zip(sizes, widths, strict=True)
        ),
        forward=forward,
        phases=keep_highest(_match_phases(small, large), gradients),
        head=_measure_head(model),
    )


@dataclass(frozen=True)
class _Step:
    """What a step of some tokens was seen to hold; bytes.

    Attributes:
        tokens: tokens of the tree.
        forward: most in a forward pass without gradients.
        saved: kept after a forward pass.
        peaks: most in the forward pass, then in the backward pass until each parameter has its
            gradient.
        made: gradients of parameters that were there at the beginning of each stretch.
        checkpoints: whether a module computes its activations again.
    """

    tokens: int
    forward: int
    saved: int
    peaks: Sequence[int]
    made: Sequence[int]
    checkpoints: bool


def _run_step(model: ValuelessModel, batch: Batch) -> _Step:
    prepared = model.prepared
    inner = prepared.model
    parameters = list(inner.parameters())
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    tensors, targets = batch.target_tensors, batch.targets
    coefficients = torch.ones(len(targets), device=model.device)
    known = [*parameters, *inner.buffers(), *grads]
    known += [batch.packed.tokens, batch.packed.depth_positions, batch.packed.subtree_ends]
    with LiveBytes([*known, coefficients]) as live:
        with torch.no_grad():
            _run_decoder(prepared, batch)
        forward = live.take_peak()
        hidden = _run_decoder(prepared, batch)
        saved, peaks, made = live.live, [live.take_peak()], [0, 0]

        def note(parameter: Tensor) -> None:
            # Its gradient has just been added; until then it counted among what lives.
            peaks.append(live.take_peak(leaving=_size(parameter)))
            made.append(made[-1] + _size(parameter))

        watched = [parameter for parameter in parameters if parameter.requires_grad]
        hooks = [value.register_post_accumulate_grad_hook(note) for value in watched]
        loss = fused_head(
            hidden, prepared.head, targets, tensors=tensors, coefficients=coefficients
        )[0]
        del hidden
        live.take_peak()  # the head has a measurement of its own
        loss.backward()
        peaks.append(live.take_peak())
        for hook in hooks:
            hook.remove()
    checkpoints = any(
        getattr(module, "gradient_checkpointing", False) and module.training
        for module in inner.modules()
    )
    return _Step(batch.num_tokens, forward, saved, peaks, made, checkpoints)


def _run_decoder(prepared: PreparedModel, batch: Batch) -> Tensor:
    # Checks before a call compare values, of which there are none here.
    return prepared.before_head(prepared._run_decoder(batch.packed))


def _match_phases(small: _Step, large: _Step) -> list[Phase]:
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


def _make_tree(model: ValuelessModel, tokens: int) -> Batch:
    """A tree of four sequences that share the first half of its tokens."""
    prefix, rest = tokens // 2, tokens // 8
    return pack([[0] * prefix + [1 + branch] * rest for branch in range(4)]).to(model.device)


def _measure_head(model: ValuelessModel) -> HeadMemory:
    head = model.prepared.head
    parameters = head.parameters
    with model.running():
        width = _head_width(model)
        hidden = torch.zeros(1, width, dtype=model.prepared.model.dtype, device=model.device)
        with torch.no_grad():
            row = head(hidden)
    limit = CPU_CHUNK_BYTES if model.device.type == "cpu" else DEVICE_CHUNK_BYTES
    rows = max(1, limit // (row.shape[-1] * row.element_size()))
    counts = (max(rows // 2, 1), rows, 2 * rows)
    half, one, two = (_run_head(model, count, width, parameters) for count in counts)
    per_token = (two - one) / rows
    per_row = (one - half) / max(rows - counts[0], 1) - per_token if rows > 1 else 0.0
    return HeadMemory(one - (per_token + per_row) * rows, per_token, per_row, rows)


def _head_width(model: ValuelessModel) -> int:
    """Size of the hidden states that the output layer receives."""
    weight = getattr(model.prepared.head.layer, "weight", None)
    if weight is not None and model.prepared.before_head.module is None:
        return int(weight.shape[-1] if isinstance(weight, Tensor) else 0) or _decoder_width(model)
    return _decoder_width(model)


def _decoder_width(model: ValuelessModel) -> int:
    with torch.no_grad():
        return _run_decoder(model.prepared, _make_tree(model, 16)).shape[-1]


def _run_head(
    model: ValuelessModel, count: int, width: int, parameters: Sequence[Tensor]
) -> int:
    """The most that the head holds for a number of predictors, bytes."""
    inner = model.prepared.model
    with model.running():
        batch = pack([[0] * (count + 1)]).to(model.device)
        tensors = batch.target_tensors
        coefficients = torch.ones(count, device=model.device)
        hidden = torch.zeros(count + 1, width, dtype=inner.dtype, device=model.device)
        hidden.requires_grad_()
        with LiveBytes([hidden, coefficients, *parameters]) as live:
            fused_head(
                hidden,
                model.prepared.head,
                batch.targets,
                tensors=tensors,
                coefficients=coefficients,
            )
    return live.take_peak()


def _measure_adamw(trainable: Sequence[Tensor], device: str) -> tuple[int, int]:
    """States of AdamW, and what its step holds besides; bytes."""
    if not trainable:
        return 0, 0
    twins = [nn.Parameter(torch.empty_like(value, device="meta")) for value in trainable]
    for twin in twins:
        twin.grad = torch.empty_like(twin)
    # Off the CPU torch updates all parameters together.
    adamw = torch.optim.AdamW(twins, foreach=not _is_host(device))
    with LiveBytes([*twins, *(twin.grad for twin in twins if twin.grad is not None)]) as live:
        adamw.step()
        states = live.live
        live.take_peak()
        adamw.step()
        return states, live.take_peak() - states


def _measure_shape(model: ValuelessModel) -> ModelShape:
    """Sizes of the decoder: of experts as many as a token is sent to, no embeddings."""
    inner = model.prepared.model
    config = inner.config.get_text_config()
    chosen = getattr(config, "num_experts_per_tok", None)
    outside = {*_ids(inner.get_input_embeddings()), *_ids(model.prepared.head.layer)}
    parameters = 0.0
    for module in inner.modules():
        for parameter in module._parameters.values():
            if parameter is None or id(parameter) in outside:
                continue
            outside.add(id(parameter))
            share = 1.0
            if chosen and parameter.ndim == 3 and parameter.shape[0] > chosen:
                share = chosen / parameter.shape[0]
            parameters += share * parameter.numel()
    first = next(iter(model.attention.values()))
    return ModelShape(
        parameters=round(parameters),
        layers=len(model.attention),
        heads=first.heads,
        head_size=first.key_size,
    )


def _ids(module: nn.Module | None) -> set[int]:
    return set() if module is None else set(map(id, module.parameters()))


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _distinct(tensors: Iterable[Tensor]) -> list[Tensor]:
    return list({id(tensor): tensor for tensor in tensors}.values())


@contextmanager
def _with_gradients(parameters: Sequence[Tensor]) -> Iterator[None]:
    """Give parameters gradients, as they have them from the partition before."""
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    yield
    for parameter in parameters:
        parameter.grad = None
