"""Log-probabilities and entropies of every sequence, computed on the packed tree.

What losses make of them is in `losses` and `policy`.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from treetrain.errors import check_type
from treetrain.losses.chunked_head import head_logprobs
from treetrain.models.prepared import PreparedModel, find_prepared
from treetrain.models.score import check_language_model
from treetrain.packing.batch import Batch
from treetrain.packing.parts import BatchPart, whole_batch
from treetrain.packing.recover import recover_edges, split_edges

Which = Literal["all", "trained"]


def sequence_logprobs(
    model: nn.Module,
    batch: Batch,
    *,
    temperature: float = 1.0,
    chunk_tokens: int | None = None,
    targets: Which = "all",
) -> list[Tensor]:
    """Log-probability of each token of each sequence given the tokens before it.

    Differentiable with respect to the model's parameters.

    Args:
        model: a prepared model.
        batch: the sequences, on the model's device.
        temperature: what the logits are divided by, above 0.
        chunk_tokens: predictors whose logits exist at one time; None: a number that fits the
            vocabulary.
        targets: "all": every token with a predecessor; "trained": only tokens that at least one
            sequence of the batch trains, which spares the head the others; their entries are 0.

    Returns:
        One tensor per sequence in input order, [max(L - 1, 0)], in nats, float32 or wider; entry i
        belongs to the token at place i + 1.

    Example:
        >>> from treetrain.models.prepare import prepare
        >>> from treetrain.packing.batch import pack
        >>> from treetrain.testing.models import make_tiny_model
        >>> model = make_tiny_model("llama")
        >>> handle = prepare(model)
        >>> batch = pack([[1, 2, 3, 4], [1, 2, 5]])
        >>> [len(logprobs) for logprobs in sequence_logprobs(model, batch)]
        [3, 2]
    """
    logprobs, _ = edge_logprobs(
        model, batch, temperature=temperature, chunk_tokens=chunk_tokens, targets=targets
    )
    return split_edges(logprobs, batch.targets)


def sequence_logprobs_and_entropies(
    model: nn.Module,
    batch: Batch,
    *,
    temperature: float = 1.0,
    chunk_tokens: int | None = None,
    targets: Which = "all",
) -> tuple[list[Tensor], list[Tensor]]:
    """Log-probability of each token, and entropy of the distribution it was predicted from.

    Differentiable with respect to the model's parameters.

    Args:
        model: a prepared model.
        batch: the sequences, on the model's device.
        temperature: what the logits are divided by, above 0; entropies are of the distribution at
            this temperature.
        chunk_tokens: as in `sequence_logprobs`.
        targets: as in `sequence_logprobs`.

    Returns:
        Log-probabilities as `sequence_logprobs` gives them, and entropies of the same shapes, in
        nats.
    """
    logprobs, entropies = edge_logprobs(
        model,
        batch,
        temperature=temperature,
        chunk_tokens=chunk_tokens,
        targets=targets,
        entropies=True,
    )
    assert entropies is not None
    return split_edges(logprobs, batch.targets), split_edges(entropies, batch.targets)


def edge_logprobs(
    model: nn.Module,
    batch: Batch,
    *,
    temperature: float = 1.0,
    chunk_tokens: int | None = None,
    targets: Which = "all",
    entropies: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Log-probabilities, and on request entropies, of all flat edges in one tensor.

    Args:
        model: a prepared model.
        batch: the sequences, on the model's device.
        temperature: what the logits are divided by, above 0.
        chunk_tokens: as in `sequence_logprobs`.
        targets: as in `sequence_logprobs`.
        entropies: whether to compute entropies.

    Returns:
        Log-probabilities [E] in nats, and entropies [E] in nats or None.

    Raises:
        ValueError: `targets` is unknown.
    """
    check_type("batch", batch, Batch, "a Batch from pack(samples)")
    if targets not in ("all", "trained"):
        raise ValueError(f"targets must be 'all' or 'trained', got {targets!r}")
    part = whole_batch(batch, untrained=targets == "all")
    prepared = find_prepared(model)
    check_language_model(model, prepared.head)
    logprobs, entropy = part_logprobs(
        prepared,
        prepared.hidden_states(batch.packed),
        part,
        temperature=temperature,
        chunk_tokens=chunk_tokens,
        entropies=entropies,
    )
    chosen, tensors = part.part.targets, part.target_tensors
    if entropy is not None:
        entropy = recover_edges(entropy, chosen, tensors)
    return recover_edges(logprobs, chosen, tensors), entropy


def part_logprobs(
    prepared: PreparedModel,
    hidden: Tensor,
    part: BatchPart,
    *,
    temperature: float = 1.0,
    chunk_tokens: int | None = None,
    entropies: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Log-probabilities, and on request entropies, of the distinct targets of a part of a batch.

    Values of several parts are put together by `part.part.places`, which tells which of the batch's
    targets each is.

    Args:
        prepared: the model's handle.
        hidden: hidden states of the part's row, [T, C].
        part: the part.
        temperature: what the logits are divided by, above 0.
        chunk_tokens: as in `sequence_logprobs`.
        entropies: whether to compute entropies.

    Returns:
        Log-probability of each target, [M] in nats, and entropy of the distribution it is predicted
        from, [M] in nats, or None.
    """
    tensors = part.target_tensors
    logprobs, entropy = head_logprobs(
        hidden,
        prepared.head,
        part.part.targets,
        tensors=tensors,
        temperature=temperature,
        chunk_tokens=chunk_tokens,
        entropies=entropies,
    )
    return logprobs, None if entropy is None else entropy[tensors.predictor_of_target]
