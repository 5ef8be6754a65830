"""What the demo says to a person: a few lines for each stage."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from treetrain.demo.acting import Attempt
from treetrain.demo.agreement import Agreement
from treetrain.demo.learning import Step
from treetrain.demo.measure import Measurement
from treetrain.progress import Progress
from treetrain.report.inspection import Inspection
from treetrain.verification.equivalence import Report
from treetrain.wording import say_count

MARGIN = 10
STRETCHES = 8
#: Times of equal programs differ by up to a fifth.
BOUND_ROOM = 0.2


class StageLines:
    """Prints stages as they end; silent where one JSON object was asked for."""

    def __init__(self, *, silent: bool) -> None:
        self.silent = silent
        self._progress = Progress(f"{'':<{MARGIN}}... ")

    def say(self, title: str, lines: list[str]) -> None:
        """Prints the first line beside a title, the others below it, and an empty line.

        Args:
            title: name of the stage.
            lines: what to say.
        """
        if self.silent:
            return
        self._progress.wipe()
        for number, line in enumerate(lines):
            print(f"{'' if number else title:<{MARGIN}}{line}".rstrip())
        print(flush=True)

    def working(self, stage: str, done: int = 0, total: int = 0) -> None:
        """Says on stderr what is being done; on a terminal the next line replaces it.

        Args:
            stage: what is being done.
            done: parts that are done.
            total: parts in all, 0 where there is only one.
        """
        if not self.silent:
            self._progress(stage, done, total)


def tell_data(path: Path, sequences: int) -> list[str]:
    """Says what was generated.

    Args:
        path: file of rows.
        sequences: sequences that the rows became.

    Returns:
        Lines.
    """
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    tasks = Counter(row["group"] for row in rows)
    tools = len(rows[0]["tools"])
    return [
        f"{len(tasks)} tasks, {len(rows)} trajectories of a greenhouse agent with {tools} tools, "
        f"in {path}",
        "thinking is gone from history, so each assistant step is a sequence of its own: "
        f"{sequences}",
    ]


def tell_inspection(inspection: Inspection) -> list[str]:
    """Says what sharing saves.

    Args:
        inspection: the counts.

    Returns:
        Lines.
    """
    total = inspection.total
    return [
        f"{total.flat_tokens:,} flat tokens -> {total.tree_tokens:,} tree tokens in "
        f"{len(inspection.groups)} trees with {total.leaves} leaves",
        f"token reduction {total.token_reduction:.2f}, attention pairs "
        f"{total.attention_pair_ratio:.2f}, FLOP bound of this model {inspection.flop_bound:.2f}: "
        f"{'pays' if inspection.pays else 'does not pay'}",
    ]


def tell_report(report: Report) -> list[str]:
    """Says how far tree training is from separate training.

    Args:
        report: what `verify` found.

    Returns:
        Lines.
    """
    verdict = "equal" if report.equal else "NOT EQUAL"
    lines = [
        f"{verdict} to {report.sequences} sequences each alone through the untouched model, "
        f"{report.dtype}",
        f"loss {report.loss_separate:.7f} alone, {report.loss_tree:.7f} on the tree",
        f"largest error: log-probability {report.logprobs.max_abs_error:.1e} nats, gradient "
        f"{report.gradients.max_relative_error:.1e} of the largest, leaks "
        f"{len(report.leaks) or 'none'}",
    ]
    return lines + report.failures


def tell_agreement(agreement: Agreement) -> list[str]:
    """Says how far apart the parameters of both ways are.

    Args:
        agreement: what was compared.

    Returns:
        Lines.
    """
    return [
        f"{agreement.steps} steps of SGD over {agreement.sequences} sequences from the same "
        "weights, on the tree and each alone:",
        f"of {agreement.parameters:,} parameters the largest difference is "
        f"{agreement.largest_difference:.1e}; training moved them by up to "
        f"{agreement.largest_change:.2g}",
    ]


def tell_steps(steps: Sequence[Step], errands: int) -> list[str]:
    """Says how the loss fell, averaged over an eighth of the steps each.

    Args:
        steps: the training steps.
        errands: errands of a step.

    Returns:
        Lines.
    """
    size = -(-len(steps) // STRETCHES)
    stretches = [steps[first : first + size] for first in range(0, len(steps), size)]
    ends = [f"{min(size * place, len(steps)):>7}" for place in range(1, len(stretches) + 1)]
    losses = [f"{mean(step.loss for step in own):7.3f}" for own in stretches]
    flat = sum(step.flat_tokens for step in steps)
    tree = sum(step.tree_tokens for step in steps)
    seconds = sum(step.seconds for step in steps)
    return [
        f"{len(steps)} steps, each over {errands} new errands; loss per token, mean of {size}",
        f"to step {''.join(ends)}",
        f"loss    {''.join(losses)}",
        f"{seconds:.0f} s for {flat:,} tokens of practice.jsonl, of which {tree:,} were computed",
    ]


def tell_attempts(before: Sequence[Attempt], after: Sequence[Attempt]) -> list[str]:
    """Says how many held-out errands were done before and after training.

    Args:
        before: attempts of the untrained model.
        after: attempts of the trained one, at the same errands.

    Returns:
        Lines.
    """
    return [
        f"{len(after)} held-out errands, done by calling the tools; what the greenhouse is like "
        "afterwards decides",
        f"before training  {_tell_share(before)}",
        f"after training   {_tell_share(after)}",
    ]


def _tell_share(attempts: Sequence[Attempt]) -> str:
    solved = sum(attempt.solved for attempt in attempts)
    calls = say_count(sum(attempt.calls for attempt in attempts), "tool call")
    text = f"{solved:>2} of {len(attempts)} ({solved / len(attempts):.0%}), {calls}"
    missed = Counter(attempt.ended for attempt in attempts if not attempt.solved)
    if not missed:
        return text
    ends = ", ".join(f"{count} {name}" for name, count in sorted(missed.items()))
    return f"{text}; the others ended: {ends}"


def tell_measurement(measurement: Measurement) -> list[str]:
    """Says what a step costs both ways.

    Args:
        measurement: the times.

    Returns:
        Lines.
    """
    lines = [
        f"one step over {say_count(measurement.sequences, 'sequence')}, "
        f"{measurement.flat_tokens:,} flat and {measurement.tree_tokens:,} tree tokens; forward "
        "and backward, in turn"
    ]
    for name, timing in (("separate", measurement.separate), ("tree", measurement.tree)):
        low, high = timing.spread
        lines.append(
            f"{name:<9} {timing.median:7.2f} s   ({low:.2f} to {high:.2f}, "
            f"{say_count(len(timing.seconds), 'round')})"
        )
    lines.append(
        f"speed-up  {measurement.speedup:7.2f}     FLOP bound {measurement.bound:.2f}, of which it "
        f"is {measurement.bound_fraction:.0%}; losses differ by {measurement.loss_difference:.0e}"
    )
    if measurement.bound_fraction > 1 + BOUND_ROOM:
        lines.append("more than the bound allows: the machine was busy meanwhile; measure again")
    return lines
