"""Cuts samples to what was asked for, and says what was cut."""

from __future__ import annotations

from collections.abc import Sequence

from treetrain.data.sample import Sample


def select_groups(
    samples: Sequence[Sample], groups: Sequence[str] | None
) -> tuple[list[Sample], list[str]]:
    """Takes the sequences of some groups.

    Args:
        samples: the sequences.
        groups: names of groups; None: all.

    Returns:
        The sequences, and a sentence if any were left out.

    Raises:
        ValueError: a group has no sequences.
    """
    if groups is None:
        return list(samples), []
    known = list(dict.fromkeys(str(sample.group) for sample in samples))
    for group in groups:
        if group not in known:
            more = ", ..." if len(known) > 8 else ""
            raise ValueError(f"--group must be one of {', '.join(known[:8])}{more}, got {group!r}")
    kept = [sample for sample in samples if str(sample.group) in groups]
    return kept, _note(samples, kept, f"group {', '.join(groups)}")


def limit_tokens(samples: Sequence[Sample], limit: int | None) -> tuple[list[Sample], list[str]]:
    """Takes whole sequences from the front.

    Args:
        samples: the sequences.
        limit: most flat tokens; None: no limit.

    Returns:
        The sequences that fit, those after the first that does not among them if they do; and a
        sentence if any were left out.

    Raises:
        ValueError: not one sequence fits.
    """
    if limit is None:
        return list(samples), []
    kept: list[Sample] = []
    room = limit
    for sample in samples:
        if len(sample) <= room:
            kept.append(sample)
            room -= len(sample)
    if not any(len(sample) for sample in kept):
        raise ValueError(
            f"token limit must be at least the length of the shortest sequence, "
            f"{min(map(len, samples))}, got {limit}"
        )
    return kept, _note(samples, kept, f"limit of {limit:,} flat tokens")


def _note(samples: Sequence[Sample], kept: Sequence[Sample], reason: str) -> list[str]:
    if len(kept) == len(samples):
        return []
    tokens, all_tokens = sum(map(len, kept)), sum(map(len, samples))
    return [
        f"{reason}: {len(kept)} of {len(samples)} sequences, {tokens:,} of {all_tokens:,} flat "
        f"tokens; the others were left out"
    ]
