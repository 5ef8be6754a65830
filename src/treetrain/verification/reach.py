"""What of a model the sequences of a check put to use: windows and chunks that cut, experts chosen.

A window of 4,096 tokens changes nothing on paths of 1,000, and a check on them says nothing of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from treetrain.data.sample import Ints, Sample
from treetrain.models.prepared import PreparedModel
from treetrain.models.self_check import calm, uncompiled


@dataclass(frozen=True)
class Reach:
    """One feature of a model, and how far some sequences reach into it.

    Attributes:
        feature: "window", "chunk" or "experts".
        size: depth positions of the window or chunk; experts that each token takes.
        layers: number of layers that have it.
        found: tokens of the longest path; experts chosen in the layer with the fewest.
        total: experts of a layer; None for windows and chunks.
    """

    feature: str
    size: int
    layers: int
    found: int
    total: int | None = None

    @property
    def tested(self) -> bool:
        """Whether a path goes beyond the size; of experts, whether tokens take different ones."""
        return self.found > self.size or self.found == self.total

    @property
    def name(self) -> str:
        """The feature with its size."""
        return f"{self.feature} {self.size}" if self.total is None else self.feature

    def __str__(self) -> str:
        state = "tested" if self.tested else "not tested"
        if self.total is None:
            return f"{state}: the longest path is {self.found:,} tokens"
        return (
            f"{state}: at least {self.found} of {self.total} chosen in each of {self.layers} "
            f"layers, {self.size} by each token"
        )


def find_reach(
    prepared: PreparedModel,
    samples: Sequence[Sample],
    *,
    on_path: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Reach, ...]:
    """Find what of a model some sequences put to use.

    Args:
        prepared: handle of the model; one with experts is run on each path, without gradients.
        samples: the sequences.
        on_path: called with how many of how many paths were run.

    Returns:
        One entry for each size of window and chunk, and one for experts; none for a model that has
        nothing of the kind.
    """
    longest = max(map(len, samples), default=0)
    found = [
        Reach(feature, size, layers, longest)
        for feature in ("window", "chunk")
        for size, layers in sorted(_sizes(prepared, feature).items())
    ]
    experts = count_experts(prepared, [sample.tokens for sample in samples], on_path=on_path)
    return tuple(found) if experts is None else (*found, experts)


def find_sizes(prepared: PreparedModel) -> list[int]:
    """List the windows and chunks of a model's layers.

    Args:
        prepared: handle of the model.

    Returns:
        Depth positions, each size once, ascending.
    """
    return sorted({size for name in ("window", "chunk") for size in _sizes(prepared, name)})


def count_experts(
    prepared: PreparedModel,
    sequences: Iterable[Ints],
    *,
    on_path: Callable[[int, int], None] = lambda done, total: None,
) -> Reach | None:
    """Run the plain model on some sequences and watch which experts their tokens take.

    Args:
        prepared: handle of the model, which is given back for the while.
        sequences: token ids, [L] int64 each.
        on_path: called with how many of how many paths were run.

    Returns:
        The experts; None where no module takes tokens together with the experts they go to.
    """
    modules = [
        module
        for module in prepared.decoder.modules()
        if isinstance(getattr(module, "num_experts", None), int)
    ]
    if not modules:
        return None
    chosen: dict[nn.Module, set[int]] = {}
    each = 0

    def watch(module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        nonlocal each
        indices = _find_indices([*arguments, *keywords.values()], module.num_experts)  # pyright: ignore
        if indices is not None:
            chosen.setdefault(module, set()).update(indices.unique().tolist())
            each = indices.shape[-1]

    model = prepared.model
    paths = _leaves(sequences)
    with prepared.undone(), calm(model), uncompiled(model), torch.no_grad():
        hooks = [module.register_forward_pre_hook(watch, with_kwargs=True) for module in modules]
        try:
            for done, path in enumerate(paths):
                on_path(done, len(paths))
                tokens = torch.tensor(path, device=model.device)[None]
                prepared.decoder(input_ids=tokens, use_cache=False)
        finally:
            for hook in hooks:
                hook.remove()
    if not chosen:
        return None
    fewest = min(chosen, key=lambda module: len(chosen[module]))
    total = fewest.num_experts
    assert isinstance(total, int)
    return Reach("experts", each, len(chosen), len(chosen[fewest]), total)


def _sizes(prepared: PreparedModel, feature: str) -> Counter[int]:
    """Number of layers with each size of window or chunk."""
    sizes = [getattr(layer, feature) for layer in prepared.layers.values()]
    return Counter(size for size in sizes if size is not None)


def _find_indices(values: Sequence[Any], experts: int) -> Tensor | None:
    """The experts of each token, [..., k] integers beside hidden states of as many tokens."""
    tensors = [value for value in values if isinstance(value, Tensor) and value.ndim >= 2]
    hidden = [tensor for tensor in tensors if tensor.is_floating_point()]
    if not hidden:
        return None
    tokens = hidden[0].shape[:-1].numel()
    for tensor in tensors:
        is_index = tensor.dtype in (torch.int64, torch.int32) and tensor.shape[-1] <= experts
        if is_index and tensor.shape[:-1].numel() == tokens:
            return tensor
    return None


def _leaves(sequences: Iterable[Ints]) -> list[list[int]]:
    """The distinct sequences that are no prefix of another."""
    ordered = sorted({tuple(tokens.tolist()) for tokens in sequences})
    return [
        list(own)
        for own, following in zip(ordered, [*ordered[1:], ()], strict=True)
        if own and following[: len(own)] != own
    ]
