"""The part of a page that draws trees, each with the same in a table for whoever cannot hover."""

from __future__ import annotations

from collections.abc import Sequence

from treetrain.report.draw_tree import Decode, draw_tree
from treetrain.report.markup import make_table
from treetrain.report.safe_text import escape, shorten
from treetrain.tree.prefix_tree import PrefixTree

TEXT_SHOWN = 80


def show_trees(trees: Sequence[tuple[str, PrefixTree]], decode: Decode | None) -> str:
    """Draw trees.

    Args:
        trees: the trees, each with its name.
        decode: token ids to text; None: ids are shown.

    Returns:
        Markup.
    """
    return (
        "<h2>Trees</h2>"
        '<p class="soft">A row is a run: tokens that follow each other in packed order along one '
        "path. It hangs where it parts from the run above; from left to right are depth positions. "
        "The stronger its colour, the more sequences go through. Beside it: tokens \u00d7 "
        "sequences, and after a plus the runs below it that are not drawn.</p>"
        + "".join(_one(name, tree, decode) for name, tree in trees)
    )


def _one(name: str, tree: PrefixTree, decode: Decode | None) -> str:
    drawing = draw_tree(tree, f"prefix tree of {shorten(name, 80)}", decode)
    rows = [
        (
            row + 1,
            "a root" if run.parent < 0 else run.parent + 1,
            f"{run.depth:,}",
            f"{run.tokens:,}",
            f"{run.parts[0].sequences:,}",
            f"{run.hidden_tokens:,}" if run.hidden else "",
            shorten(run.parts[0].text, TEXT_SHOWN),
        )
        for row, run in enumerate(drawing.runs)
    ]
    heads = ("run", "hangs from", "depth", "tokens", "sequences", "tokens not drawn", "begins with")
    return (
        f"<h3><bdi>{escape(name)}</bdi></h3><p class='soft'>{escape(drawing.note)}</p>"
        f'<div class="scroll">'
        f"{drawing.svg}</div><details><summary>The same as a table</summary>"
        f"{make_table('runs that are drawn', heads, rows, words=(6,))}</details>"
    )
