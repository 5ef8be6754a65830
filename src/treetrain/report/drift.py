"""What a drift watch found, as a JSON object and as text for a person."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from treetrain.data.drift import Decode, Drift
from treetrain.data.drift_watch import DriftWatch
from treetrain.data.sample import Ints
from treetrain.tree.build import build_prefix_tree
from treetrain.wording import say_count

DRIFTS_SHOWN = 3

Json = dict[str, Any]


@dataclass(frozen=True)
class DriftReport:
    """What was found, with the trees that history as it is and as it was sampled make.

    Attributes:
        watch: what was compared.
        tree_tokens: tree tokens of all steps as they are.
        kept_tree_tokens: tree tokens where history keeps what was sampled.
    """

    watch: DriftWatch
    tree_tokens: int
    kept_tree_tokens: int


def measure_drift(watch: DriftWatch) -> DriftReport:
    """Builds both trees of the steps that were watched.

    Args:
        watch: what reading a file was watched with.

    Returns:
        The report; without a drift between steps the two trees are one, which is built once.
    """
    tokens = _tree_tokens(watch.rendered)
    kept = _tree_tokens(watch.kept) if watch.step_drifts else tokens
    return DriftReport(watch, tokens, kept)


def drift_as_json(report: DriftReport) -> Json:
    """Puts a report into plain values.

    Args:
        report: the report.

    Returns:
        The object under `drift` of `inspect --json`; every drift is in it.
    """
    watch = report.watch
    return {
        "answers": {
            "compared": watch.answers,
            "tokens": watch.answer_tokens,
            "other_retok": watch.other_retok,
            **_counts(watch.answer_drifts, watch.decode),
        },
        "steps": {
            "compared": watch.steps,
            **_counts(watch.step_drifts, watch.decode),
            "tree_tokens": report.tree_tokens,
            "kept_tree_tokens": report.kept_tree_tokens,
            "not_kept": watch.unknown,
        },
    }


def drift_lines(report: DriftReport) -> list[str]:
    """Writes a report for a person.

    Args:
        report: the report.

    Returns:
        Lines, none where nothing was compared.
    """
    watch = report.watch
    if not watch.answers and not watch.steps:
        return []
    lines = ["", "drift (where text rendered or tokenised again leaves what was recorded)"]
    if watch.answers:
        lines.append(
            f"  recorded answers: {len(watch.answer_drifts)} of {watch.answers:,} leave their ids "
            f"when their text is tokenised again; {_lost(watch.answer_drifts):,} of "
            f"{watch.answer_tokens:,} tokens lost"
        )
        lines += _examples(watch.answer_drifts, watch.decode)
        if watch.other_retok:
            lines.append(
                f"    {say_count(watch.other_retok, 'row')} with a `retok` that this tokenizer "
                f"does not give"
            )
    if watch.steps:
        lines.append(
            f"  steps: {len(watch.step_drifts):,} of {watch.steps:,} do not begin with the step "
            f"before them{_kinds(watch.step_drifts)}"
        )
        lines += _examples(watch.step_drifts, watch.decode)
    if watch.step_drifts:
        lines += _kept_lines(report)
    return lines


def _kept_lines(report: DriftReport) -> list[str]:
    unknown, drifts = report.watch.unknown, len(report.watch.step_drifts)
    if unknown == drifts:
        return [
            "  what a template that keeps what was sampled would make cannot be said: where a step "
            "drifts, what it adds cannot be told from what it rewrites"
        ]
    saved = report.tree_tokens - report.kept_tree_tokens
    share = 100 * saved / report.tree_tokens
    lines = [
        f"  a template that keeps what was sampled would make {report.kept_tree_tokens:,} tree "
        f"tokens instead of {report.tree_tokens:,} ({abs(share):.1f} % "
        f"{'fewer' if saved >= 0 else 'more'})"
    ]
    if unknown:
        lines.append(
            f"    {unknown:,} of {drifts:,} are taken as they are: what they add cannot be told "
            f"from what they rewrite"
        )
    return lines


def _kinds(drifts: Sequence[Drift]) -> str:
    if not drifts:
        return ""
    counts = Counter(drift.kind for drift in drifts)
    named = ", ".join(f"{count:,} {kind}" for kind, count in counts.most_common())
    return f": {named}; {_lost(drifts):,} of their tokens lost"


def _lost(drifts: Sequence[Drift]) -> int:
    return sum(drift.lost for drift in drifts)


def _counts(drifts: Sequence[Drift], decode: Decode | None) -> Json:
    return {
        "drifts": len(drifts),
        "re_rendered": sum(drift.kind == "re-rendered" for drift in drifts),
        "re_tokenised": sum(drift.kind == "re-tokenised" for drift in drifts),
        "tokens_lost": _lost(drifts),
        "found": [_drift(drift, decode) for drift in drifts],
    }


def _drift(drift: Drift, decode: Decode | None) -> Json:
    pieces = {name: getattr(drift, name).tolist() for name in ("before", "recorded", "again")}
    return {
        "kind": drift.kind,
        "source": drift.source,
        "later": drift.later,
        "place": drift.place,
        "length": drift.length,
        "lost": drift.lost,
        **pieces,
        **({} if decode is None else {"text": {name: decode(ids) for name, ids in pieces.items()}}),
    }


def _examples(drifts: Sequence[Drift], decode: Decode | None) -> list[str]:
    lines: list[str] = []
    # Those that lose most say most; equal ones stay in the order of the file.
    for drift in sorted(drifts, key=lambda drift: -drift.lost)[:DRIFTS_SHOWN]:
        where = "" if drift.later is None else f", as {drift.later} has it"
        lines += [
            f"    {drift.source}{where}: {drift.kind} at token {drift.place} of {drift.length}, "
            f"{say_count(drift.lost, 'token')} lost",
            f"      after     {_shown(drift.before, decode)}".rstrip(),
            f"      recorded  {_shown(drift.recorded, decode)}",
            f"      again     {_shown(drift.again, decode)}".rstrip(),
        ]
    hidden = len(drifts) - DRIFTS_SHOWN
    if hidden > 0:
        lines.append(f"    ... and {hidden:,} more (all of them with --json)")
    return lines


def _shown(ids: Ints, decode: Decode | None) -> str:
    if decode is None:
        return " ".join(map(str, ids.tolist()))
    # Where only the borders of tokens differ, the decoded pieces would be the same.
    return " ".join(repr(decode([token])) for token in ids.tolist())


def _tree_tokens(steps: Sequence[tuple[Hashable, Ints]]) -> int:
    groups: dict[Hashable, list[Ints]] = {}
    for group, tokens in steps:
        groups.setdefault(group, []).append(tokens)
    return sum(build_prefix_tree(own).num_tokens for own in groups.values())
