"""`treetrain inspect`: counts what sharing saves in a file, and says whether it pays.

Rows of token ids are counted without torch and without transformers.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treetrain.data.report import ReadReport
    from treetrain.report.inspection import Inspection
    from treetrain.report.partings import Parting
    from treetrain.tree.metrics import ModelShape, TreeMetrics

GROUPS_SHOWN = 20
PARTINGS_SHOWN = 5
NO_GROUP = "(no group)"
Json = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `treetrain inspect`.

    Args:
        parser: parser of this verb.
    """
    add_reading_arguments(parser)
    parser.add_argument(
        "--shape",
        metavar="P,L,H,D",
        help="model for the FLOP bound: parameters without embeddings, layers, query heads, head "
        "size (default: 440000000,28,16,128)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object and nothing else"
    )


def add_reading_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that say how a file of rows is read; `read_file` takes their values.

    Args:
        parser: parser of any verb that reads rows.
    """
    parser.add_argument("file", metavar="FILE", type=Path, help="JSON lines, or one JSON array")
    parser.add_argument(
        "--tokenizer",
        metavar="T",
        help="folder, .gguf file, 'demo', 'smollm2' or a model's name; not needed for token ids",
    )
    parser.add_argument(
        "--expand",
        choices=("whole", "per_step"),
        default="whole",
        help="one sequence per conversation, or one per assistant message (default: whole)",
    )
    parser.add_argument(
        "--tools",
        metavar="FILE",
        help="JSON list of tool schemas, 'none' for none (default: tools.json beside FILE, if any)",
    )
    parser.add_argument(
        "--select",
        metavar="FIELD=VALUE",
        action="append",
        default=[],
        help="only rows with this value; may be repeated",
    )
    parser.add_argument(
        "--chat-template",
        metavar="FILE",
        type=Path,
        help="Jinja file instead of the tokenizer's own",
    )
    parser.add_argument(
        "--template-variable",
        metavar="NAME=JSON",
        action="append",
        default=[],
        help="variable of the chat template, for example enable_thinking=false; may be repeated",
    )


def read_file(args: argparse.Namespace, tokenizer: Any) -> tuple[list[Any], ReadReport]:
    """Reads the file that the arguments of `add_reading_arguments` name.

    What a chat template leaves out is counted here, not refused: counting and comparing are right for
    whatever text there is.

    Args:
        args: parsed arguments.
        tokenizer: what `load_tokenizer` gave, or None.

    Returns:
        Samples and report of `read_samples_with_report`.
    """
    from treetrain.data.rows import read_samples_with_report

    template = args.chat_template
    return read_samples_with_report(
        args.file,
        tokenizer=tokenizer,
        expand=args.expand,
        tools=[] if args.tools == "none" else args.tools,
        select=dict(_split(pair, "--select") for pair in args.select),
        chat_template=None if template is None else template.read_text(encoding="utf-8"),
        template_variables={
            name: _json(value)
            for name, value in (_split(p, "--template-variable") for p in args.template_variable)
        },
        unrendered="count",
    )


def run(args: argparse.Namespace) -> int:
    """Reads the file, counts, prints.

    Args:
        args: parsed arguments.

    Returns:
        Exit code 0.
    """
    from treetrain.cli.tokenizers import load_tokenizer
    from treetrain.report.inspection import DEFAULT_SHAPE, inspect_samples

    shape = DEFAULT_SHAPE if args.shape is None else _shape(args.shape)
    tokenizer = None if args.tokenizer is None else load_tokenizer(args.tokenizer)
    samples, report = read_file(args, tokenizer)
    inspection = inspect_samples(samples, shape=shape)
    decode = None if tokenizer is None else tokenizer.decode
    if args.json:
        print(json.dumps(as_json(inspection, report, decode), ensure_ascii=False))
    else:
        print(as_text(inspection, report, decode))
    return 0


def as_json(
    inspection: Inspection, report: ReadReport, decode: Callable[[Any], str] | None
) -> Json:
    """Puts an inspection into plain values.

    Args:
        inspection: the counts.
        report: how the file was read.
        decode: token ids to text, or None.

    Returns:
        The object that `--json` prints.
    """
    shape = inspection.shape
    return {
        **_counts(inspection.total, inspection.targets, inspection.targets_flat),
        "pays": inspection.pays,
        "reason": inspection.reason,
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
        "file": report.path,
        "rows": report.rows,
        "notes": report.notes(),
    }


def as_text(inspection: Inspection, report: ReadReport, decode: Callable[[Any], str] | None) -> str:
    """Writes an inspection for a person.

    Args:
        inspection: the counts.
        report: how the file was read.
        decode: token ids to text, or None.

    Returns:
        Several lines.
    """
    total, shape = inspection.total, inspection.shape
    lines = [
        f"{report.path}: {report.rows} rows, {total.sequences} sequences in "
        f"{len(inspection.groups)} groups",
        *(f"  note: {note}" for note in report.notes()),
        "",
        f"{'group':<24}{'sequences':>10}{'flat tokens':>13}{'tree tokens':>13}"
        f"{'reduction':>11}{'pairs':>8}{'FLOPs':>8}{'targets':>10}",
    ]
    for count in inspection.groups[:GROUPS_SHOWN]:
        name = NO_GROUP if count.group is None else str(count.group)
        lines.append(_row(name, count.metrics, count.flop_bound, count.targets))
    hidden = len(inspection.groups) - GROUPS_SHOWN
    if hidden > 0:
        lines.append(f"... and {hidden} more groups (all of them with --json)")
    lines += [
        _row("all", total, inspection.flop_bound, inspection.targets),
        "",
        f"POR {100 * total.por:.1f} %; {total.nodes} nodes, {total.leaves} leaves, {total.runs} runs, "
        f"{total.roots} roots; longest path {total.depth_max} tokens; "
        f"{inspection.targets_flat} targets in the sequences, {inspection.targets} in the trees",
        f"attention pairs {total.attention_pairs_flat} flat, {total.attention_pairs_tree} tree",
        f"FLOP bound {inspection.flop_bound:.2f} (against separate sequences without those that are "
        f"prefixes of others: {inspection.leafized_flop_bound:.2f}) for {shape.parameters:,} "
        f"parameters, {shape.layers} layers of {shape.heads} heads of {shape.head_size}",
        *_parting_lines(inspection, decode),
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
        f"{metrics.token_reduction:>11.2f}{metrics.attention_pair_ratio:>8.2f}{bound:>8.2f}"
        f"{targets:>10}"
    )


def _parting(parting: Parting, decode: Callable[[Any], str] | None) -> Json:
    found: Json = {
        "token": parting.token,
        "places": parting.places,
        "tokens": parting.tokens,
        "repeated": parting.repeated,
        "depth": parting.depth,
        "sequences": parting.sequences,
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


def _parting_lines(inspection: Inspection, decode: Callable[[Any], str] | None) -> list[str]:
    if not inspection.partings:
        return []
    lines = ["", "where paths part (repeated: the same tokens stand in the larger branch again)"]
    for parting in inspection.partings[:PARTINGS_SHOWN]:
        before, branch, sibling = (
            repr(decode(tokens.tolist())) if decode is not None else str(tokens.tolist())
            for tokens in (parting.before, parting.branch, parting.sibling)
        )
        lines += [
            f"  {parting.places} branches that begin alike: {parting.tokens} tokens, "
            f"{parting.repeated} of them repeated; for example at depth {parting.depth}",
            f"    after   {before}",
            f"    branch  {branch}",
            f"    beside  {sibling}",
        ]
    return lines


def _split(pair: str, option: str) -> tuple[str, str]:
    name, sign, value = pair.partition("=")
    if not sign or not name:
        raise ValueError(f"{option} must be NAME=VALUE, got {pair!r}")
    return name, value


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _shape(text: str) -> ModelShape:
    from treetrain.tree.metrics import ModelShape

    try:
        parameters, layers, heads, head_size = (int(part) for part in text.split(","))
    except ValueError as error:
        raise ValueError(f"--shape must be four integers P,L,H,D, got {text!r}") from error
    return ModelShape(parameters=parameters, layers=layers, heads=heads, head_size=head_size)
