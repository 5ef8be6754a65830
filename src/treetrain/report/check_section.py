"""The part of a page about a check of tree training against separate training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from treetrain.report.markup import make_table, make_verdict
from treetrain.report.safe_text import escape
from treetrain.wording import say_count

Json = Mapping[str, Any]


def show_check(check: Json) -> str:
    """Show the verdict and every comparison.

    Args:
        check: what `verify` found, as its report gives it for JSON.

    Returns:
        Markup.
    """
    equal = check["equal"]
    # Only narrow dtypes are judged by the error that separate training itself makes.
    floors = any(one["separate_error"] is not None for one in check["comparisons"])
    compared = (
        f"{say_count(check['sequences'], 'sequence')} on trees and each alone, "
        f"{check['flat_tokens']:,} flat tokens, {check['tree_tokens']:,} tree tokens, "
        f"{check['dtype']}, reduction {check['reduction']}; "
        f"loss {_number(check['loss']['separate'], 9)} separate, "
        f"{_number(check['loss']['tree'], 9)} tree"
    )
    return (
        "<h2>Check</h2>"
        + make_verdict(equal, "equal" if equal else "NOT EQUAL", compared)
        + "".join(f"<p><bdi>{escape(sentence, 1000)}</bdi></p>" for sentence in check["failures"])
        + make_table(
            "differences from separate training",
            ("quantity", "error", "allowed", "result", *(["separate itself"] if floors else [])),
            _comparisons(check, floors),
        )
        + "<p></p>"
        + make_table(
            "tokens altered: what must not move, and what must (ancestor)",
            ("rule", "moved", "places", "result"),
            _leak_checks(check),
        )
        + f'<p class="soft">{" ".join(_worst(check))}</p>'
    )


def _comparisons(check: Json, floors: bool) -> Iterator[tuple[str, ...]]:
    for one in check["comparisons"]:
        floor = one["separate_error"]
        yield (
            one["quantity"],
            _number(one["error"]),
            _number(one["allowed"]),
            "ok" if one["passes"] else "too large",
            *(["" if floor is None else _number(floor)] if floors else []),
        )


def _leak_checks(check: Json) -> Iterator[tuple[str, ...]]:
    for one in check["leak_checks"]:
        tested = one["places"] > 0
        yield (
            one["rule"],
            _number(one["moved"]) if tested else "",
            f"{one['places']:,}",
            ("ok" if one["passes"] else "LEAK") if tested else "not tested",
        )


def _worst(check: Json) -> Iterator[str]:
    worst = check["worst_token"]
    if worst is not None:
        source = f" ({worst['source']})" if worst["source"] else ""
        yield (
            f"Largest difference of a log-probability: token {escape(worst['token'])} at place "
            f"{worst['place']:,} of sequence {worst['sequence']:,}{escape(source)}."
        )
    if check["worst_parameter"] is not None:
        yield f"Largest difference of a gradient: {escape(check['worst_parameter'])}."


def _number(value: float | None, digits: int = 2) -> str:
    return "not finite" if value is None else f"{value:.{digits}g}"
