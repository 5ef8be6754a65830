"""Values of sequences and of tokens, for reward models and critics, computed on the packed tree.

A value is what a head gives for a hidden state: the model's own (`score`, `classifier`) or a module
that the caller hands over. What losses make of values is the caller's affair.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from treetrain.errors import RandomModelError, UnsupportedModelError, check_type
from treetrain.losses.reductions import name_sample
from treetrain.models.guards import check_dropouts, find_dropouts
from treetrain.models.prepared import PreparedModel, find_prepared
from treetrain.models.score import ScoreHead
from treetrain.packing.batch import Batch
from treetrain.packing.recover import recover_sequences
from treetrain.tree.prefix_tree import Ints

#: A part of the largest value; what a head draws or takes from other tokens is larger.
_MOVED = 1e-3


def sequence_values(model: nn.Module, batch: Batch, head: nn.Module | None = None) -> list[Tensor]:
    """Value of each sequence: what a head gives for the hidden state of its last token.

    Values and gradients are those of each sequence alone. The head runs once for each distinct end:
    equal sequences share it, and a sequence that ends inside another has its value there.

    The last token is the sequence's own last one, whatever its id. transformers by itself takes the
    last token that is not `config.pad_token_id`, so that for a sequence which ends in that id the
    model's own value would be another: such a sequence is refused where the head is the model's
    own. Hand the layer over, `head=model.score`, for the value at the true end.

    Args:
        model: a prepared model.
        batch: the sequences, on the model's device.
        head: a module applied to the decoder's hidden states, [n, C], that gives one row per token,
            [n, ...]; `wrapper.v_head` of trl's value-head wrapper is one, whose
            `wrapper.pretrained_model` is the model. None: the classification model's own.

    Returns:
        One tensor per sequence in input order, [labels] (or what follows n in the head's rows), in
        the head's dtype. Differentiable with respect to the model's and the head's parameters.

    Raises:
        ValueError: a sequence is empty and has no last token, or ends in the id of padding (see
            above), `head` is None for a language model, or does not give one row per token.
        TypeError: `batch` is no batch, or `head` no module.
        UnsupportedModelError: the head draws at random or mixes tokens.

    Example:
        >>> from transformers import AutoModelForSequenceClassification
        >>> from treetrain.models.prepare import prepare
        >>> from treetrain.packing.batch import pack
        >>> from treetrain.testing.models import make_tiny_model
        >>> auto = AutoModelForSequenceClassification
        >>> model = make_tiny_model("llama", auto=auto, num_labels=1)
        >>> handle = prepare(model)
        >>> chosen, rejected = sequence_values(model, pack([[1, 2, 3, 4], [1, 2, 5]]))
        >>> chosen.shape
        torch.Size([1])
    """  # noqa: DOC502, DOC503 (the checks raise)
    prepared, head_module = _find(model, batch, head)
    ends = _find_ends(batch)
    if head is None and isinstance(prepared.head, ScoreHead) and prepared.head.per_sequence:
        _check_padding(prepared.model, batch, ends)
    distinct, places = np.unique(ends, return_inverse=True)
    hidden = prepared.decoder_states(batch.packed)
    chosen = hidden.index_select(0, torch.from_numpy(distinct).to(hidden.device))
    values = _apply(head_module, chosen)
    return list(values.index_select(0, torch.from_numpy(places).to(values.device)).unbind(0))


def token_values(model: nn.Module, batch: Batch, head: nn.Module | None = None) -> list[Tensor]:
    """Value of each token of each sequence: what a head gives for its hidden state.

    The head runs once for each token of the tree.

    Args:
        model: a prepared model.
        batch: the sequences, on the model's device.
        head: as in `sequence_values`; the `score` of a sequence classification model gives values
            at all tokens too.

    Returns:
        One tensor per sequence in input order, [L, labels], in the head's dtype; an empty sequence
        has [0, labels]. Differentiable with respect to the model's and the head's parameters.

    Raises:
        ValueError: `head` is None for a language model, or does not give one row per token.
        TypeError: `batch` is no batch, or `head` no module.
        UnsupportedModelError: the head draws at random or mixes tokens.

    Example:
        >>> from treetrain.models.prepare import prepare
        >>> from treetrain.packing.batch import pack
        >>> from treetrain.testing.models import make_tiny_model
        >>> model = make_tiny_model("llama")
        >>> handle = prepare(model)
        >>> critic = nn.Linear(32, 1)
        >>> batch = pack([[1, 2, 3, 4], [1, 2, 5]])
        >>> [list(values.shape) for values in token_values(model, batch, critic)]
        [[4, 1], [3, 1]]
    """  # noqa: DOC502, DOC503 (the checks raise)
    prepared, head_module = _find(model, batch, head)
    values = _apply(head_module, prepared.decoder_states(batch.packed))
    return recover_sequences(values, batch, per="token")


def _find(
    model: nn.Module, batch: Batch, head: nn.Module | None
) -> tuple[PreparedModel, nn.Module]:
    """The model's handle, and the head: the one handed over, or the model's own."""
    prepared = find_prepared(model)
    check_type("batch", batch, Batch, "a Batch from pack(samples)")
    if head is not None:
        check_type("head", head, nn.Module, "a module that takes hidden states, [n, C]")
        for name, module in find_dropouts(head):
            rate = getattr(module, "p", 0.0)
            if module.training and rate > 0:
                raise RandomModelError(
                    f"{'.'.join(filter(None, ('head', name)))} would drop {rate} of its input; a "
                    "shared token cannot be dropped differently for each sequence",
                    "set its rate p to 0, or call head.eval()",
                )
        return prepared, head
    if not isinstance(prepared.head, ScoreHead):
        raise ValueError(
            f"head must be a module for {type(prepared.model).__name__}, whose own output layer "
            "predicts tokens, got None; hand one over, for example torch.nn.Linear(hidden_size, "
            "1), or load the model as AutoModelForSequenceClassification"
        )
    # Those beside the decoder too, which may be in training where the decoder is frozen.
    check_dropouts(find_dropouts(prepared.model))
    return prepared, prepared.head.layer


def _find_ends(batch: Batch) -> Ints:
    """Packed index of each sequence's last token, [S] int64."""
    nodes = batch.tree.sequence_nodes
    if (empty := np.flatnonzero(nodes < 0)).size:
        raise ValueError(
            f"{name_sample(batch, int(empty[0]))} must have a token, got an empty sequence, which "
            "has no last token and no value; leave it out"
        )
    return batch.tree.node_starts[nodes + 1] - 1


def _check_padding(model: PreTrainedModel, batch: Batch, ends: Ints) -> None:
    """Refuse sequences whose value transformers by itself takes at an earlier token."""
    padding = getattr(model.config.get_text_config(), "pad_token_id", None)
    if padding is None:
        return
    padded = (batch.tree.tokens[ends] == padding) & (batch.tree.sequence_lengths > 1)
    if padded.any():
        raise ValueError(
            f"{name_sample(batch, int(padded.argmax()))} must not end in id {padding}, which is "
            f"config.pad_token_id: {type(model).__name__} by itself takes such a sequence's value "
            "at an earlier token; set config.pad_token_id to an id that no sequence ends in, or "
            "hand the layer over for the value at the true end: sequence_values(model, batch, "
            "head=model.score)"
        )


def _apply(head: nn.Module, hidden: Tensor) -> Tensor:
    """Values of hidden states, one row each, after a look at what the head does with them."""
    if len(hidden):
        _check_rows(head, hidden[:1].detach())
    return _run(head, hidden)


def _run(head: nn.Module, hidden: Tensor) -> Tensor:
    values = head(hidden)
    if not isinstance(values, Tensor) or values.shape[:1] != hidden.shape[:1]:
        got = f"shape {list(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(
            f"head must give one row per token for hidden states of shape {list(hidden.shape)}, "
            f"got {got}"
        )
    return values


def _check_rows(head: nn.Module, one: Tensor) -> None:
    """Refuse a head whose value of a token is not a function of its hidden state alone.

    Looked at is the value of either of two tokens and its gradients, which show what weights of 0
    hide.
    """
    beside = one.roll(1, -1)
    on_cpu = one.device.type == "cpu"
    devices, kind = ([], "cuda") if on_cpu else ([one.device], one.device.type)
    rows = torch.cat([one, beside])
    with torch.random.fork_rng(devices, device_type=kind):
        first, again = _look(head, rows, 0), _look(head, rows, 0)
        second = _look(head, rows, 1)
        first_beside_other = _look(head, torch.cat([one, -beside]), 0)
        second_beside_other = _look(head, torch.cat([-one, beside]), 1)
    name = type(head).__name__
    if _differ(again, first):
        raise RandomModelError(
            f"head {name} draws at random: two calls on the same hidden states differ, and a "
            "shared token cannot be drawn differently for each sequence",
            "set its rate of dropout or noise to 0, or call head.eval()",
        )
    if _differ(first_beside_other, first) or _differ(second_beside_other, second):
        raise UnsupportedModelError(
            f"head {name} mixes tokens: the value of one changes with the hidden state of another "
            "(a batch norm in training, a recurrent layer, or an attention?), which separate "
            "sequences would not do; take a head that works on each token, or call head.eval()"
        )


def _look(head: nn.Module, rows: Tensor, place: int) -> list[Tensor]:
    """The value of one row, and its gradients in the head's parameters."""
    with torch.enable_grad():
        value = _run(head, rows)[place]
        seen = [value.detach()]
        parameters = [part for part in head.parameters() if part.requires_grad]
        if value.requires_grad and parameters:
            found = torch.autograd.grad(value.float().sum(), parameters, allow_unused=True)
            seen += [gradient for gradient in found if gradient is not None]
    return seen


def _differ(some: list[Tensor], others: list[Tensor]) -> bool:
    return any(
        bool((one - other).abs().max() > _MOVED * other.abs().max())
        for one, other in zip(some, others, strict=True)
        if one.numel()
    )
