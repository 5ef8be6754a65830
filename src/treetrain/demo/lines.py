"""What the demo says to a person: a few lines for each stage."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from treetrain.demo.stages import Measurement, Step
from treetrain.progress import Progress
from treetrain.report.inspection import Inspection
from treetrain.verification.equivalence import Report
from treetrain.wording import say_count

MARGIN = 10
BAR = 40
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


def tell_steps(steps: Sequence[Step], tasks: int) -> list[str]:
    """Draws the loss, averaged over each round through the tasks.

    Args:
        steps: the training steps.
        tasks: steps of one round.

    Returns:
        Lines.
    """
    rounds = [steps[first : first + tasks] for first in range(0, len(steps), tasks)]
    losses = [mean(step.loss for step in own) for own in rounds]
    lines = [f"{len(steps)} steps of AdamW, one task each; loss per token, mean of {tasks} tasks"]
    for number, (own, loss) in enumerate(zip(rounds, losses, strict=True)):
        last = number * tasks + len(own)
        lines.append(f"to step {last:>3}  {loss:6.3f}  {'#' * round(BAR * loss / max(losses))}")
    flat = sum(step.flat_tokens for step in steps)
    tree = sum(step.tree_tokens for step in steps)
    seconds = sum(step.seconds for step in steps)
    lines.append(
        f"{seconds:.0f} s for {flat:,} tokens of sequences, of which {tree:,} were computed"
    )
    return lines


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
