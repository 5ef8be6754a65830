"""The parts of a page about data: what sharing saves, group by group, and where paths part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from treetrain.report.markup import make_cards, make_table, make_verdict
from treetrain.report.safe_text import escape
from treetrain.wording import say_count, say_short

Json = Mapping[str, Any]

GROUPS_SHOWN = 50


def show_savings(inspection: Json) -> str:
    """Show the verdict, and tokens, pairs and floating-point work, flat beside tree.

    Args:
        inspection: what `tables.as_json` made.

    Returns:
        Markup.
    """
    verdict, _, reason = inspection["reason"].partition(": ")
    leafized = inspection["leafized_flop_bound"]
    pairs, flops, shape = inspection["attention_pairs"], inspection["flops"], inspection["shape"]
    bars = "".join(
        _bars(name, flat, tree)
        for name, flat, tree in (
            ("tokens", inspection["flat_tokens"], inspection["tree_tokens"]),
            ("attention pairs", pairs["flat"], pairs["tree"]),
            ("floating-point operations", flops["flat"], flops["tree"]),
        )
    )
    cards = make_cards(
        [
            ("sequences", f"{inspection['sequences']:,}"),
            ("groups", f"{len(inspection['groups']):,}"),
            ("token reduction", f"{inspection['token_reduction']:.2f}"),
            ("FLOP bound", f"{inspection['flop_bound']:.2f}"),
            ("longest path", f"{inspection['depth_max']:,}"),
            ("targets", f"{inspection['targets']:,}"),
        ]
    )
    notes = "".join(f"<p>note: <bdi>{escape(note, 1000)}</bdi></p>" for note in inspection["notes"])
    return (
        make_verdict(inspection["pays"], verdict, reason)
        + f"{notes}{cards}<h2>Flat and tree</h2><div class='bars'>{bars}</div>"
        f'<p class="soft">Flat: each sequence alone. Tree: every shared token once. '
        "Floating-point operations are those of one training step over everything, forward and "
        f"backward, for {shape['parameters']:,} parameters, {shape['layers']} layers of "
        f"{shape['heads']} heads of {shape['head_size']}; against separate sequences without "
        f"those that are prefixes of others the FLOP bound is {leafized:.2f}.</p>"
    )


def show_groups(inspection: Json) -> str:
    """Show the counts of each group, those with most flat tokens first.

    Args:
        inspection: what `tables.as_json` made.

    Returns:
        Markup.
    """
    groups = sorted(inspection["groups"], key=lambda group: -group["flat_tokens"])
    shown = [
        (
            "(no group)" if group["group"] is None else group["group"],
            f"{group['sequences']:,}",
            f"{group['flat_tokens']:,}",
            f"{group['tree_tokens']:,}",
            f"{group['token_reduction']:.2f}",
            f"{group['attention_pairs']['ratio']:.2f}",
            f"{group['flop_bound']:.2f}",
            f"{group['nodes']:,}",
            f"{group['targets']:,}",
        )
        for group in groups[:GROUPS_SHOWN]
    ]
    caption = say_count(len(groups), "group")
    if len(groups) > len(shown):
        caption = f"{len(shown)} of {caption}, those with most flat tokens"
    heads = ("group", "sequences", "flat tokens", "tree tokens", "reduction", "pair ratio")
    return "<h2>Groups</h2>" + make_table(
        caption, (*heads, "FLOP bound", "nodes", "targets"), shown
    )


def show_partings(inspection: Json) -> str:
    """Show where paths part, the costliest places first.

    Args:
        inspection: what `tables.as_json` made.

    Returns:
        Markup; empty where no path parts.
    """
    if not inspection["partings"]:
        return ""
    return (
        "<h2>Where paths part</h2>"
        '<p class="soft">Repeated: the same tokens stand in the larger branch again.</p>'
        + "".join(_parting(one) for one in inspection["partings"])
    )


def _bars(name: str, flat: float, tree: float) -> str:
    most = max(flat, tree, 1)
    ratio = f", flat over tree {flat / tree:.2f}" if tree else ""
    return f"<b>{name}{ratio}</b>" + "".join(
        f"<span>{way}</span><div><div class='bar {way}' style='width:{100 * count / most:.2f}%'>"
        f"</div></div><span class='number'>{say_short(count)}</span>"
        for way, count in (("flat", flat), ("tree", tree))
    )


def _parting(one: Json) -> str:
    place = f" of {one['source']}" if one["source"] is not None else ""
    alike = "" if one["places"] == 1 else " that begin alike"
    head = (
        f"{say_count(one['places'], 'branch')}{alike}: {say_count(one['tokens'], 'token')}, "
        f"{one['repeated']:,} of them repeated; "
        f"{'' if one['places'] == 1 else 'for example '}at depth {one['depth']:,}{place}"
    )
    return (
        f'<h3><bdi>{escape(head)}</bdi></h3><dl class="parting">' + "".join(_texts(one)) + "</dl>"
    )


def _texts(one: Json) -> Iterator[str]:
    for name, title in (("before", "after"), ("branch", "branch"), ("sibling", "beside")):
        text = one["text"][name] if "text" in one else " ".join(map(str, one[name]))
        yield f"<dt>{title}</dt><dd><code><bdi>{escape(text)}</bdi></code></dd>"
