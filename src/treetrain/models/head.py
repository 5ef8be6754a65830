"""The map from hidden states to logits, without the rest of the model.

Logits are not always the output layer of hidden states: some models scale or cap them. What the
config names is tried, and what reproduces the model's own logits is used; a head that nothing
reproduces is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from treetrain.errors import UnsupportedModelError
from treetrain.models.before_head import find_factor

#: Config values that cap logits; those of attention scores are others.
_CAP = re.compile(r"(?!attn|attention)\w*logits?_\w*cap")


@dataclass(frozen=True, eq=False)
class Head:
    """Logits of hidden states.

    Attributes:
        layer: the model's output layer.
        scale: factor of the layer's output.
        softcap: logits become `softcap * tanh(logits / softcap)`; None for none.
        per_sequence: whether the model itself gives those of each sequence's last token only.
    """

    layer: nn.Module
    scale: float = 1.0
    softcap: float | None = None
    per_sequence: bool = False

    def __call__(self, hidden: Tensor) -> Tensor:
        """Compute logits.

        Args:
            hidden: hidden states, [n, C].

        Returns:
            Logits, [n, V], float32 or wider.
        """
        logits = self.layer(hidden)
        if self.scale != 1.0:
            logits = logits * self.scale
        if self.softcap is not None:
            logits = torch.tanh(logits / self.softcap) * self.softcap
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Parameters of the output layer, trained or not."""
        return list(self.layer.parameters())


def find_head(model: PreTrainedModel, layer: nn.Module, hidden: Tensor, *, logits: Tensor) -> Head:
    """Find the head that reproduces a model's own logits.

    Args:
        model: the model.
        layer: its output layer.
        hidden: hidden states of a few tokens as the layer receives them, [n, C]; large ones, so
            that a cap shows.
        logits: the model's own logits of these tokens, [n, V].

    Returns:
        The head.

    Raises:
        UnsupportedModelError: if none of the scales and caps that the config names gives the
            model's logits, or if they hang on a parameter that is not the layer's.
    """
    config = model.config.get_text_config()
    # What the config names comes first: where logits are all near 0, everything reproduces them.
    scales = []
    if (factor := getattr(config, "logit_scale", None)) is not None:
        scales.append(float(factor))
    if divisor := getattr(config, "logits_scaling", None):
        scales.append(1.0 / divisor)
    with torch.no_grad():
        measured = find_factor(layer(hidden), logits)
    scales += [1.0] if measured is None else [1.0, measured]
    caps = [*find_caps(model), None]
    expected = logits.to(torch.promote_types(logits.dtype, torch.float32))
    tolerance = 8 * torch.finfo(logits.dtype).eps * max(float(expected.abs().max()), 1e-6)
    found: tuple[float, Head | None] = (float("inf"), None)
    for scale in scales:
        for softcap in dict.fromkeys(caps):
            head = Head(layer, scale, softcap)
            with torch.no_grad():
                error = float((head(hidden) - expected).abs().max())
            # The closest: in half precision a wrong one may be near. The first of equals.
            if error < found[0]:
                found = (error, head)
    closest, head = found
    if head is not None and closest <= tolerance:
        check_leaves(model, head, hidden)
        return head
    forward = type(model).forward
    raise UnsupportedModelError(
        f"{type(model).__name__} computes logits that its output layer does not give (closest: off "
        f"by {closest:.2g}, allowed {tolerance:.2g}), and its config names no scale or cap that "
        f"explains it; what {forward.__module__}.{forward.__qualname__} does after the output "
        "layer would be left out: train it on separate sequences, or put it into the output layer"
    )


def find_caps(model: PreTrainedModel) -> list[float]:
    """Find the caps of logits that a model's config names.

    Args:
        model: the model.

    Returns:
        The caps, in the config's order.
    """
    values = model.config.get_text_config().to_dict()
    named = [value for name, value in values.items() if _CAP.match(name)]
    return [cap for cap in named if isinstance(cap, int | float) and cap > 0]


def check_leaves(model: PreTrainedModel, head: Head, hidden: Tensor) -> None:
    """Make sure that gradients of the logits reach parameters of the output layer only.

    Args:
        model: the model.
        head: its head.
        hidden: hidden states of a few tokens, [n, C].

    Raises:
        UnsupportedModelError: if one would reach another trainable tensor.
    """
    known = set(map(id, head.parameters))
    with torch.enable_grad():
        logits = head(hidden.detach())
    for leaf in find_leaves(logits):
        if id(leaf) not in known:
            raise UnsupportedModelError(
                f"the output layer of {type(model).__name__} uses a trainable tensor of shape "
                f"{list(leaf.shape)} that is none of its parameters (in a forward hook, or in an "
                "adapter of another layer?), which would get no gradient; make it a parameter of "
                "the layer"
            )


def find_leaves(result: Tensor) -> list[Tensor]:
    """Find the tensors that get a gradient when one is computed from a result.

    Args:
        result: the result of a computation.

    Returns:
        The leaves of its graph.
    """
    ends = [result.grad_fn]
    visited: set[object] = set()
    leaves: list[Tensor] = []
    while ends:
        node = ends.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        ends.extend(before for before, _ in node.next_functions)
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            leaves.append(leaf)
    return leaves
