"""What the demo says of a model that acts, and of parameters that were trained both ways."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from treetrain.demo.acting import Attempt
from treetrain.demo.agreement import Agreement


def tell_attempts(before: Sequence[Attempt], after: Sequence[Attempt]) -> list[str]:
    """Says how many held-out tasks were solved before and after training.

    Args:
        before: attempts of the untrained model.
        after: attempts of the trained one, at the same tasks.

    Returns:
        Lines.
    """
    lines = [
        "held-out tasks that the model solves by acting in the greenhouse, whose state decides:",
        f"before training  {share(before)}",
        f"after training   {share(after)}, {sum(attempt.calls for attempt in after)} tools called",
    ]
    missed = Counter(attempt.ended for attempt in after if not attempt.solved)
    if missed:
        said = ", ".join(f"{count} {name}" for name, count in sorted(missed.items()))
        lines.append(f"not solved after training, by how the attempt ended: {said}")
    return lines


def share(attempts: Sequence[Attempt]) -> str:
    """Writes the share of solved tasks.

    Args:
        attempts: at least one.

    Returns:
        Solved of all, and per cent.
    """
    solved = sum(attempt.solved for attempt in attempts)
    return f"{solved:>2} of {len(attempts)} ({solved / len(attempts):.0%})"


def tell_agreement(agreement: Agreement) -> list[str]:
    """Says how far apart the parameters of both ways are.

    Args:
        agreement: what was compared.

    Returns:
        Lines.
    """
    return [
        f"{agreement.steps} steps of SGD over {agreement.sequences} sequences, from the same "
        "weights, on the tree and each sequence alone",
        f"{agreement.parameters:,} parameters: largest difference "
        f"{agreement.largest_difference:.1e}, where training moved them by up to "
        f"{agreement.largest_change:.1e}",
    ]
