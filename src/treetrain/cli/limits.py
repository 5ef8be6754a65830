"""Cuts samples to what was asked for, and says what was cut."""

from __future__ import annotations

from collections.abc import Sequence

from treetrain.data.sample import Sample
from treetrain.wording import say_count


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
    """  # noqa: DOC502 (_fill raises)
    if limit is None:
        return list(samples), []
    kept = _fill(samples, set(), limit)
    return kept, _note(samples, kept, f"limit of {limit:,} flat tokens")


def limit_to_shared(samples: Sequence[Sample], limit: int | None) -> tuple[list[Sample], list[str]]:
    """Takes whole sequences that share prefixes and branch, then others from the front.

    Sequences that train nothing come last: a check of them alone is none.

    Args:
        samples: the sequences.
        limit: most flat tokens; None: no limit.

    Returns:
        The sequences, in their order; and sentences that say what was left out, and from which
        limit on two sequences branch where they do not within this one.

    Raises:
        ValueError: not one sequence fits.
    """  # noqa: DOC502 (_fill raises)
    from treetrain.packing.batch import build_group_tree, group_samples
    from treetrain.tree.choose import choose_shared, shortest_branching_pair

    if limit is None or sum(map(len, samples)) <= limit:
        return list(samples), []
    trained = [place for place, sample in enumerate(samples) if sample.weights[1:].any()]
    candidates = [samples[place] for place in trained]
    groups = group_samples(candidates)
    trees = [build_group_tree(candidates, members) for members in groups]
    chosen = {
        trained[int(members[place])]
        for members, found in zip(groups, choose_shared(trees, limit), strict=True)
        for place in found.tolist()
    }
    kept = _fill(samples, chosen, limit)
    notes = _note(samples, kept, f"limit of {limit:,} flat tokens, those that share first")
    pair = shortest_branching_pair(trees)
    if pair is None or pair > limit:
        way_out = "none of the file do" if pair is None else f"two do from a limit of {pair:,} on"
        notes.append(
            f"no two of the sequences taken share a prefix and branch, which says little of trees: "
            f"{way_out}"
        )
    return kept, notes


def _fill(samples: Sequence[Sample], chosen: set[int], limit: int) -> list[Sample]:
    """The chosen sequences, and others from the front that fit beside them."""
    kept = set(chosen)
    room = limit - sum(len(samples[place]) for place in chosen)
    for place, sample in enumerate(samples):
        if place not in kept and len(sample) <= room:
            kept.add(place)
            room -= len(sample)
    if not any(len(samples[place]) for place in kept):
        raise ValueError(
            "the limit of tokens must be at least the length of the shortest sequence, "
            f"{min(map(len, samples)):,}, got {limit:,}"
        )
    return [samples[place] for place in sorted(kept)]


def _note(samples: Sequence[Sample], kept: Sequence[Sample], reason: str) -> list[str]:
    if len(kept) == len(samples):
        return []
    tokens, all_tokens = sum(map(len, kept)), sum(map(len, samples))
    groups, all_groups = (len({sample.group for sample in some}) for some in (kept, samples))
    return [
        f"{reason}: {len(kept):,} of {say_count(len(samples), 'sequence')}, {tokens:,} of "
        f"{all_tokens:,} flat tokens, {groups} of {say_count(all_groups, 'group')}; the others "
        "were left out"
    ]
