"""The layer by which a model gives values in place of next tokens: reward models and critics.

transformers calls it `score` or `classifier`. Which layer it is and where its values are taken is
found by watching plain calls; a model that takes them anywhere but at each sequence's last token,
or at every token, is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from treetrain.errors import UnsupportedModelError
from treetrain.models.head import Head
from treetrain.models.special_ids import find_special_ids

#: Makes hidden states so large on their way into the layer that a cap of its values shows.
_ENLARGEMENT = 64


@dataclass(frozen=True, eq=False)
class ScoreHead(Head):
    """Values of hidden states.

    Attributes:
        name: the layer's name in the model.
    """

    name: str = ""


def find_output_layer(model: PreTrainedModel, head: Head) -> nn.Module | None:
    """Find the layer that stands now where a head's layer stood when it was made.

    Args:
        model: the model.
        head: the head.

    Returns:
        The layer, or None.
    """
    if isinstance(head, ScoreHead):
        return getattr(model, head.name, None)
    return model.get_output_embeddings()


def check_language_model(model: nn.Module, head: object) -> None:
    """Refuse a model that gives values where log-probabilities are wanted.

    Args:
        model: the model.
        head: its head.

    Raises:
        UnsupportedModelError: if the head gives values.
    """
    if isinstance(head, ScoreHead):
        raise UnsupportedModelError(
            f"{type(model).__name__} has no language-model head: its {head.name} gives values, not "
            "log-probabilities of tokens; take sequence_values(model, batch) or "
            "token_values(model, batch), or load it as AutoModelForCausalLM"
        )


def find_score(model: PreTrainedModel, decoder: nn.Module, tokens: Tensor) -> ScoreHead | None:
    """Find the layer that makes a classification model's values, and where they are taken.

    Args:
        model: the model, in eval mode.
        decoder: the part of it that returns hidden states.
        tokens: one sequence of at least two tokens, [1, T].

    Returns:
        The head; None for a model that predicts tokens, or has nothing beside its decoder.

    Raises:
        UnsupportedModelError: if it gives no logits, or they are not one layer's, of the decoder's
            hidden states, at each sequence's last token or at every token.
    """
    found = _find_layer(model, decoder)
    if found is None:
        return None
    name, layer = found
    kind = type(model).__name__
    inputs, values, logits = _watch(model, layer, tokens)
    if logits is None:
        raise UnsupportedModelError(
            f"{kind} gives no logits, which causal language models and classification models do; "
            "load it as one of these, for example AutoModelForCausalLM"
        )
    vocabulary = model.config.get_text_config().vocab_size
    if logits.shape[-1] == vocabulary:
        return None
    with torch.no_grad():
        hidden = decoder(input_ids=tokens, use_cache=False)[0]
    if inputs is None or inputs.shape != hidden.shape or not torch.equal(inputs, hidden):
        shape = None if inputs is None else list(inputs.shape)
        raise UnsupportedModelError(
            f"{kind} hands its {name} something else than its decoder's hidden states of shape "
            f"{list(hidden.shape)} (got shape {shape}), such as a pooler's output for the first "
            "token; known are values of hidden states at each sequence's last token: train it on "
            "separate sequences"
        )
    head = ScoreHead(layer, per_sequence=logits.dim() == 2, name=name)
    _check_places(kind, head, values, logits=logits, said=f"{tokens.shape[1]} tokens")
    if head.per_sequence:
        # A pooling may look for such an id, as the usual one does for padding.
        padding = getattr(model.config.get_text_config(), "pad_token_id", None)
        first, second = tokens[0, :2].tolist()
        for special in sorted(find_special_ids(model) - {padding}):
            if 0 <= special < vocabulary:
                row = torch.tensor([[first, special, second, special]], device=tokens.device)
                _, values, logits = _watch(model, layer, row)
                assert logits is not None
                _check_places(kind, head, values, logits=logits, said=f"4 with id {special}")
    return head


def _find_layer(model: PreTrainedModel, decoder: nn.Module) -> tuple[str, nn.Module] | None:
    """The one module beside the decoder that has parameters; None for a language model."""
    if model.get_output_embeddings() is not None:
        return None
    inside = set(map(id, decoder.parameters()))
    names = sorted(
        {
            name.partition(".")[0]
            for name, parameter in model.named_parameters()
            if id(parameter) not in inside
        }
    )
    if not names:
        return None
    if len(names) > 1 or not isinstance(layer := getattr(model, names[0]), nn.Module):
        raise UnsupportedModelError(
            f"{type(model).__name__} has parameters beside its decoder in {', '.join(names)}; "
            "known are models whose values are one layer's, of the decoder's hidden states: put "
            "them into one module, or hand a module over to a causal language model, "
            "sequence_values(model, batch, head)"
        )
    return names[0], layer


def _watch(
    model: PreTrainedModel, layer: nn.Module, tokens: Tensor
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """What the layer is given, what it gives for that made large, and the model's output then."""
    seen: dict[str, Tensor] = {}

    def enlarge(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        del module
        if not inputs:
            return inputs
        seen["inputs"] = inputs[0]
        return (inputs[0] * _ENLARGEMENT, *inputs[1:])

    def keep(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        del module, inputs
        seen["values"] = output

    # Around the layer's own hooks, since trees call it with them.
    hooks = [
        layer.register_forward_pre_hook(enlarge, prepend=True),
        layer.register_forward_hook(keep),
    ]
    try:
        with torch.no_grad():
            logits = getattr(model(input_ids=tokens, use_cache=False), "logits", None)
    finally:
        for hook in hooks:
            hook.remove()
    return seen.get("inputs"), seen.get("values"), logits


def _check_places(
    kind: str, head: ScoreHead, values: Tensor | None, *, logits: Tensor, said: str
) -> None:
    """Make sure that a model's output is its layer's, at the last token or at every one."""
    if values is None or values.dim() != 3:
        shape = None if values is None else list(values.shape)
        raise UnsupportedModelError(
            f"the {head.name} of {kind} must give a row per token, [1, T, labels], got shape "
            f"{shape}; a layer that pools or mixes tokens is not computed on trees: train it on "
            "separate sequences"
        )
    tolerance = 8 * torch.finfo(logits.dtype).eps * max(float(values.abs().max()), 1e-6)
    expected = values[:, -1] if head.per_sequence else values
    found: list[int] = []
    if logits.shape == expected.shape:
        errors = (values[0] - logits[0]).abs().amax(-1)
        found = torch.nonzero(errors <= tolerance).flatten().tolist()
    if len(values[0]) - 1 in found if head.per_sequence else len(found) == len(values[0]):
        return
    what = (
        f"takes its value at place {found[-1]} of {said}"
        if found and head.per_sequence
        else f"gives values for {said} that its {head.name} does not give there"
    )
    raise UnsupportedModelError(
        f"{kind} {what}; known are the last token's value and one value per token, as the "
        f"{head.name} gives them: train it on separate sequences, or hand a module over to a "
        "causal language model, sequence_values(model, batch, head), which takes the last token's"
    )
