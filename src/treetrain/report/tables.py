"""An inspection as a JSON object and as text for a person."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from treetrain.data.report import ReadReport
from treetrain.report.drift import DriftReport, drift_as_json, drift_lines
from treetrain.report.inspection import Inspection
from treetrain.report.partings import Parting
from treetrain.tree.metrics import TreeMetrics, training_flops
from treetrain.wording import say_count

GROUPS_SHOWN = 20
PARTINGS_SHOWN = 5
NO_GROUP = "(no group)"

CAPTION = (
    "reduction, pair ratio, FLOP bound: tokens, attention pairs and floating-point work of "
    "separate sequences over those of the tree"
)

Json = dict[str, Any]
Decode = Callable[[Any], str]


def as_json(
    inspection: Inspection,
    report: ReadReport | None,
    decode: Decode | None,
    *,
    drift: DriftReport | None = None,
) -> Json:
    """Puts an inspection into plain values.

    Args:
        inspection: the counts.
        report: how the file was read; None: the samples come from several files, or from none.
        decode: token ids to text, or None.
        drift: where recorded ids are left, or None where reading was not watched.

    Returns:
        The object that `--json` prints.
    """
    shape, total = inspection.shape, inspection.total
    return {
        **_counts(inspection.total, inspection.targets, inspection.targets_flat),
        "pays": inspection.pays,
        "reason": inspection.reason,
        "flops": {
            "flat": training_flops(total.flat_tokens, total.attention_pairs_flat, shape),
            "tree": training_flops(total.tree_tokens, total.attention_pairs_tree, shape),
        },
        "flop_bound": inspection.flop_bound,
        "leafized_flop_bound": inspection.leafized_flop_bound,
        "token_reduction_mean": inspection.token_reduction_mean,
        "shape": {
            "parameters": shape.parameters,
            "layers": shape.layers,
            "heads": shape.heads,
            "head_size": shape.head_size,
        },
        "partings": [_parting(one, decode) for one in inspection.partings[:PARTINGS_SHOWN]],
        "groups": [
            {
                "group": count.group,
                **_counts(count.metrics, count.targets, count.targets_flat),
                "flop_bound": count.flop_bound,
                "partings": [_parting(one, decode) for one in count.partings[:PARTINGS_SHOWN]],
            }
            for count in inspection.groups
        ],
        "file": None if report is None else report.path,
        "rows": None if report is None else report.rows,
        "rows_read": None if report is None else report.rows_read,
        "skipped_rows": [] if report is None else report.skipped,
        "notes": [] if report is None else report.notes(),
        "drift": None if drift is None else drift_as_json(drift),
    }


def as_text(
    inspection: Inspection,
    report: ReadReport,
    decode: Decode | None,
    *,
    drift: DriftReport | None = None,
) -> str:
    """Writes an inspection for a person.

    Args:
        inspection: the counts.
        report: how the file was read.
        decode: token ids to text, or None.
        drift: where recorded ids are left, or None where reading was not watched.

    Returns:
        Several lines.
    """
    total, shape = inspection.total, inspection.shape
    lines = [
        f"{report.path}: {say_count(report.rows, 'row')}, "
        f"{say_count(total.sequences, 'sequence')} in {say_count(len(inspection.groups), 'group')}",
        *(f"  note: {note}" for note in report.notes()),
        "",
        CAPTION,
        f"{'group':<24}{'sequences':>10}{'flat tokens':>13}{'tree tokens':>13}"
        f"{'reduction':>11}{'pair ratio':>12}{'FLOP bound':>12}{'targets':>10}",
    ]
    for count in inspection.groups[:GROUPS_SHOWN]:
        name = NO_GROUP if count.group is None else str(count.group)
        lines.append(_row(name, count.metrics, count.flop_bound, count.targets))
    hidden = len(inspection.groups) - GROUPS_SHOWN
    if hidden > 0:
        lines.append(f"... and {say_count(hidden, 'more group')} (all of them with --json)")
    lines += [
        _row("all", total, inspection.flop_bound, inspection.targets),
        "",
        f"POR {100 * total.por:.1f} %; {say_count(total.nodes, 'node')}, "
        f"{say_count(total.leaves, 'leaf')}, {say_count(total.runs, 'run')}, "
        f"{say_count(total.roots, 'root')}; longest path {say_count(total.depth_max, 'token')}; "
        f"{say_count(inspection.targets_flat, 'target')} in the sequences, "
        f"{inspection.targets:,} in the trees",
        f"attention pairs {total.attention_pairs_flat:,} flat, {total.attention_pairs_tree:,} "
        f"tree; mean of the groups' token reductions {inspection.token_reduction_mean:.2f}",
        f"FLOP bound {inspection.flop_bound:.2f} (against separate sequences without those that "
        f"are prefixes of others: {inspection.leafized_flop_bound:.2f}) for {shape.parameters:,} "
        f"parameters, {shape.layers} layers of {shape.heads} heads of {shape.head_size}",
        *_parting_lines(inspection, decode),
        *([] if drift is None else drift_lines(drift)),
        "",
        inspection.reason,
    ]
    return "\n".join(lines)


def _counts(metrics: TreeMetrics, targets: int, targets_flat: int) -> Json:
    return {
        "sequences": metrics.sequences,
        "trees": metrics.roots,
        "flat_tokens": metrics.flat_tokens,
        "tree_tokens": metrics.tree_tokens,
        "por": metrics.por,
        "token_reduction": metrics.token_reduction,
        "attention_pairs": {
            "flat": metrics.attention_pairs_flat,
            "tree": metrics.attention_pairs_tree,
            "ratio": metrics.attention_pair_ratio,
        },
        "nodes": metrics.nodes,
        "leaves": metrics.leaves,
        "runs": metrics.runs,
        "depth_max": metrics.depth_max,
        "targets": targets,
        "targets_flat": targets_flat,
    }


def _row(name: str, metrics: TreeMetrics, bound: float, targets: int) -> str:
    shown = name if len(name) <= 23 else name[:20] + "..."
    return (
        f"{shown:<24}{metrics.sequences:>10}{metrics.flat_tokens:>13}{metrics.tree_tokens:>13}"
        f"{metrics.token_reduction:>11.2f}{metrics.attention_pair_ratio:>12.2f}{bound:>12.2f}"
        f"{targets:>10}"
    )


def _parting(parting: Parting, decode: Decode | None) -> Json:
    found: Json = {
        "token": parting.token,
        "places": parting.places,
        "tokens": parting.tokens,
        "repeated": parting.repeated,
        "depth": parting.depth,
        "sequences": parting.sequences,
        "source": parting.source,
        "before": parting.before.tolist(),
        "branch": parting.branch.tolist(),
        "sibling": parting.sibling.tolist(),
    }
    if decode is not None:
        found["text"] = {
            name: decode(getattr(parting, name).tolist())
            for name in ("before", "branch", "sibling")
        }
    return found


def _branches(parting: Parting) -> str:
    alike = "" if parting.places == 1 else " that begin alike"
    return say_count(parting.places, "branch") + alike


def _parting_lines(inspection: Inspection, decode: Decode | None) -> list[str]:
    if not inspection.partings:
        return []
    lines = ["", "where paths part (repeated: the same tokens stand in the larger branch again)"]
    for parting in inspection.partings[:PARTINGS_SHOWN]:
        before, branch, sibling = (
            repr(decode(tokens.tolist())) if decode is not None else str(tokens.tolist())
            for tokens in (parting.before, parting.branch, parting.sibling)
        )
        lines += [
            f"  {_branches(parting)}: {say_count(parting.tokens, 'token')}, "
            f"{parting.repeated:,} of them repeated; "
            f"{'' if parting.places == 1 else 'for example '}at depth {parting.depth}"
            f"{'' if parting.source is None else f' of {parting.source}'}",
            f"    after   {before}",
            f"    branch  {branch}",
            f"    beside  {sibling}",
        ]
    return lines
