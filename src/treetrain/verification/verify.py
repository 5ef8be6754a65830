"""Checks that tree training equals training each sequence alone, on your model and your data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from functools import partial

import torch
from numpy.typing import ArrayLike
from torch import nn
from transformers import PreTrainedModel

from treetrain.data.sample import Sample
from treetrain.errors import (
    EquivalenceError,
    UnsupportedModelError,
    check_number,
    check_type,
)
from treetrain.losses.reductions import Reduction
from treetrain.models.prepared import PreparedModel
from treetrain.models.score import ScoreHead
from treetrain.models.wrappers import unwrap_model
from treetrain.packing.batch import as_samples
from treetrain.verification.baseline import Outcome, loss_coefficients
from treetrain.verification.both_ways import Progress, StepResult, StepWork
from treetrain.verification.comparison import TOLERANCES, Comparison, Judge
from treetrain.verification.equivalence import Report, WorstToken
from treetrain.verification.judgement import StepPair
from treetrain.verification.leaks import LeakCheck, check_changes, find_changes
from treetrain.verification.reach import find_reach
from treetrain.verification.restore import temporarily_prepared, unchanged
from treetrain.verification.truth import computed_dtype, run_in_float64
from treetrain.verification.widened import widen


def verify(
    model: nn.Module,
    samples: Iterable[Sample | ArrayLike],
    reduction: Reduction = "path_mean",
    *,
    backend: str | None = None,
    max_tokens: int | None = None,
    tolerance: float | None = None,
    truth: bool | None = None,
    learning_rate: float = 0.1,
    changes: int = 8,
    raise_on_difference: bool = True,
    on_progress: Progress | None = None,
) -> Report:
    """Compare one training step on trees with the same step over each sequence alone.

    Compared are the log-probability of every token, the loss, the gradient of every trainable
    parameter, and the parameters after one step of plain gradient descent. Not of AdamW: its first
    step is the learning rate times the gradient's sign, so that a gradient of nearly 0 moves a
    parameter either way by rounding alone. Then single tokens are altered, and the order of the
    sequences, to see that nothing moves which must not.

    float64 and float32 are held to 1e-10 and 1e-5 of the largest value of each quantity; float64 is
    computed in float64 throughout, where the model itself would compute norms in float32. Where
    float32 differs by more, and always for narrower dtypes, a surrounding autocast's among them,
    both ways are compared with a float64 copy of the model instead: trees may then be off by 1.1
    times what separate training is off by, with room for chance on few tokens, and trees in float64
    must equal separate sequences in float64.

    The model keeps its mode (train or eval): what is checked is what is trained, checkpointing of
    activations included, except in float64: there activations are stored, which changes no value.
    Weights are never changed; gradients, random state and attention are as
    before afterwards, also after an interruption.

    Args:
        model: a Hugging Face causal model, prepared or not, in a wrapper of peft or not.
        samples: samples, or bare token ids, of which every token is trained.
        reduction: reduction of the loss that is checked.
        backend: attention backend for a model that is not prepared; None: "auto".
        max_tokens: tree tokens of one packed row; None: everything in one row. A larger tree is cut
            into partitions of that size, as training does (on a dense mask, into rows).
        tolerance: largest difference, as a part of the largest value; None: the dtype's own.
        truth: whether to compare with a float64 copy, 8 bytes a parameter twice; None: if needed.
        learning_rate: of the optimiser step.
        changes: number of single tokens to alter.
        raise_on_difference: whether a difference is an error.
        on_progress: called with the name of the stage, and how many of how many parts are done: 0
            when the stage begins.

    Returns:
        The report.

    Raises:
        ValueError: if nothing is trained, if the model has no trainable parameter, if a token id is
            outside the vocabulary, or if `backend` is given for a prepared model.
        EquivalenceError: if the two differ, or something leaks, and `raise_on_difference` is set.

    Example:
        >>> from treetrain.testing.models import make_tiny_model
        >>> report = verify(make_tiny_model("llama"), [[1, 2, 3, 4, 5], [1, 2, 3, 6, 7]])
        >>> report.equal, report.flat_tokens, report.tree_tokens
        (True, 10, 7)
    """  # noqa: DOC503 (the checks raise the ValueError)
    wrapper, model = model, unwrap_model(model)
    check_type("model", model, PreTrainedModel, "a transformers model")
    for name, number in (("tolerance", tolerance), ("learning_rate", learning_rate)):
        if number is not None:
            check_number(name, number)
    check_number("changes", changes, whole=True)
    checked = as_samples(samples)
    _check_arguments(model, checked)
    with unchanged(model), temporarily_prepared(wrapper, backend) as prepared:
        _check_language_model(prepared)
        work = StepWork(checked, reduction, max_tokens, on_progress or (lambda *stage: None))
        report = _check(
            prepared,
            work,
            tolerance=tolerance,
            truth=truth,
            learning_rate=learning_rate,
            changes=changes,
        )
    if raise_on_difference and not report.equal:
        raise EquivalenceError(
            "tree training must equal separate training, got:\n"
            + "\n".join([*report.failures, *report.worst_lines()])
        )
    return report


def _check(
    prepared: PreparedModel,
    work: StepWork,
    *,
    tolerance: float | None,
    truth: bool | None,
    learning_rate: float,
    changes: int,
) -> Report:
    model, samples = prepared.model, work.samples
    dtype = computed_dtype(model)
    allowed = TOLERANCES.get(dtype) if tolerance is None else tolerance
    if allowed is None and truth is False:
        raise ValueError(
            f"tolerance must be given for {dtype} with truth=False: the dtype has none of its own"
        )
    rows = work.pack(prepared, samples)
    targets = sum(len(row.batch.targets) for row in rows)
    reach = find_reach(prepared, samples, on_path=partial(work.on_progress, "experts"))
    # One rounding of the largest value, where the dtype has no tolerance of its own.
    rounding = torch.finfo(dtype).eps if allowed is None else allowed
    with widen(model) if dtype == torch.float64 else nullcontext():
        separate, tree = work.run_separately(prepared), work.run_tree(prepared)
        turned = work.tree_logprobs(prepared, samples[::-1])[::-1]
        leaks = _check_leaks(prepared, work, changes=changes, tolerance=rounding)
    both = StepPair(
        separate,
        tree,
        StepResult(Outcome(turned, 0.0), {}),
        model=model,
        coefficients=loss_coefficients(samples, work.reduction),
        learning_rate=learning_rate,
    )
    structure: tuple[Comparison, ...] = ()
    found = None if allowed is None or truth else both.judge(Judge(allowed, targets), None)
    # Separate float32 itself may be further from the truth than 1e-5, so it has no last word.
    unsure = truth is None and tolerance is None and dtype != torch.float64
    if found is None or (unsure and not found.passes):
        try:
            right, structure = run_in_float64(prepared, work, targets)
            found = both.judge(Judge(None, targets), right)
        except UnsupportedModelError:
            # What differs already is not made right by a twin that is refused.
            if found is None:
                raise
    order, gradients = found.order, found.gradients
    places = sum(map(len, turned)) if len(samples) > 1 else 0
    leaks.append(LeakCheck("order", order.error, order.allowed, places, "sequences turned round"))
    return Report(
        dtype=str(dtype).removeprefix("torch."),
        reduction=work.reduction,
        sequences=len(samples),
        flat_tokens=sum(map(len, samples)),
        tree_tokens=sum(row.batch.num_tokens for row in rows),
        partitions=sum(row.partitions.num_partitions for row in rows if row.partitions is not None),
        split_tokens=sum(row.batch.duplicated_tokens for row in rows),
        loss_separate=separate.outcome.loss,
        loss_tree=tree.outcome.loss,
        logprobs=found.logprobs,
        loss=found.loss,
        gradients=gradients,
        step=found.step,
        structure=structure,
        leak_checks=tuple(leaks),
        reach=reach,
        learning_rate=learning_rate,
        worst_token=_worst_token(samples, found.logprobs),
        worst_parameter=None if gradients.worst is None else gradients.worst.name,
    )


def _check_leaks(
    prepared: PreparedModel, work: StepWork, *, changes: int, tolerance: float
) -> list[LeakCheck]:
    embedding = prepared.model.get_input_embeddings()
    assert isinstance(embedding.weight, torch.Tensor)
    chosen = find_changes(work.samples, count=changes, vocabulary=len(embedding.weight))
    done = 0
    work.on_progress("leaks", done, len(chosen) + 1)

    def hidden(samples: Sequence[Sample]) -> list[torch.Tensor]:
        nonlocal done
        found = work.tree_hidden(prepared, samples)
        done += 1
        work.on_progress("leaks", done, len(chosen) + 1)
        return found

    return check_changes(work.samples, chosen, hidden, tolerance=tolerance)


def _worst_token(samples: Sequence[Sample], logprobs: Comparison) -> WorstToken | None:
    if logprobs.worst is None:
        return None
    sequence, place = int(logprobs.worst.name), logprobs.worst.index + 1
    return WorstToken(
        sequence=sequence,
        place=place,
        token=int(samples[sequence].tokens[place]),
        source=samples[sequence].source,
        separate=logprobs.worst.separate,
        tree=logprobs.worst.tree,
    )


def _check_language_model(prepared: PreparedModel) -> None:
    if isinstance(prepared.head, ScoreHead):
        name = type(prepared.model).__name__
        raise UnsupportedModelError(
            f"verify compares log-probabilities of tokens, and {name} gives values; prepare(model) "
            "has compared those with its own on a small tree: compare sequence_values(model, "
            "batch) with model(input_ids) of each sequence for your data"
        )


def _check_arguments(model: nn.Module, samples: Sequence[Sample]) -> None:
    if not any(sample.weights[1:].any() for sample in samples):
        raise ValueError(
            f"samples must train at least one token after a first, got none in {len(samples)} "
            "sequences; a check of nothing proves nothing"
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError("model must have a trainable parameter, got none with requires_grad")
    vocabulary = model.get_input_embeddings().weight.shape[0]  # pyright: ignore
    for index, sample in enumerate(samples):
        if len(sample) and sample.tokens.max() >= vocabulary:
            place = int(sample.tokens.argmax())
            source = f"{sample.source}: " if sample.source else ""
            raise ValueError(
                f"{source}samples[{index}] must have ids below the model's vocabulary of "
                f"{vocabulary}, got {sample.tokens[place]} at place {place}; is it the model's own "
                "tokenizer?"
            )
