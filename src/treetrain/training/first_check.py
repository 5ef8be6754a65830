"""The check before the first step: a few sequences of the first row against ordinary training."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from transformers import PreTrainedModel

from treetrain.data.sample import Sample
from treetrain.packing.batch import Batch, pack
from treetrain.progress import Progress
from treetrain.training.config import TrainConfig
from treetrain.verification.equivalence import Report
from treetrain.verification.verify import verify
from treetrain.wording import say_count


def check_first(
    model: PreTrainedModel,
    batch: Batch,
    config: TrainConfig,
    *,
    say: Callable[[str], None],
    in_parts: bool = False,
) -> Report:
    """Check tree training on a few whole sequences of a row.

    Args:
        model: the prepared model.
        batch: the row.
        config: reduction, and how many tokens to check.
        say: prints a line for a person.
        in_parts: whether to cut their tree into three partitions or more.

    Returns:
        The report.

    Raises:
        EquivalenceError: there is a difference, and `check.on_difference` is "error".
    """  # noqa: DOC502 (verify raises)
    chosen = choose_few(batch.samples, config.check.flat_tokens)
    progress = Progress("first check, ")
    parts = max(pack(chosen).num_tokens // 3, 1) if in_parts else None
    report = verify(
        model,
        chosen,
        config.reduction,
        max_tokens=parts,
        raise_on_difference=config.check.on_difference == "error",
        on_progress=progress,
    )
    progress.wipe()
    if not report.equal:
        say(
            "note: first check: tree training differs from separate training, and goes on because "
            f"check.on_difference is warn: {'; '.join(report.failures)}"
        )
        return report
    cut = f", {say_count(report.partitions, 'partition')}" if report.partitions else ""
    say(
        f"first check: {report.sequences} of {batch.num_sequences} sequences of the first row (the "
        f"shortest; {report.flat_tokens:,} flat tokens{cut}) equal separate training: gradients "
        f"within {report.gradients.max_relative_error:.1g} of the largest, nothing leaks"
    )
    return report


def choose_few(samples: Sequence[Sample], flat_tokens: int) -> list[Sample]:
    """Choose the shortest sequences, at least two, one of which trains something.

    Args:
        samples: the sequences.
        flat_tokens: about how many tokens.

    Returns:
        Whole sequences, in their order.
    """
    order = sorted(range(len(samples)), key=lambda index: len(samples[index]))
    trained = [index for index in order if samples[index].weights[1:].any()]
    chosen = set(trained[:1])
    total = sum(len(samples[index]) for index in chosen)
    for index in order:
        if len(chosen) >= 2 and total + len(samples[index]) > flat_tokens:
            break
        if index not in chosen:
            chosen.add(index)
            total += len(samples[index])
    return [samples[index] for index in sorted(chosen)]
