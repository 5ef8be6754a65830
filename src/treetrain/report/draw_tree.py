"""A prefix tree as SVG: one bar for each run, from left to right along the path.

A run is drawn as one row, divided where paths part from it; the darker a part, the more sequences
go through it. What is drawn is bounded, whatever the tree; what is left out is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from treetrain.report.axes import find_ticks
from treetrain.report.safe_text import escape
from treetrain.tree.prefix_tree import PrefixTree
from treetrain.tree.runs import Runs, find_runs
from treetrain.wording import say_count, say_short

Decode = Callable[[Any], str]

MOST_RUNS = 40
NARROWEST = 6  # units of the drawing: nodes of a run are joined until a part is this wide
WIDTH, LEFT, RIGHT, TOP, ROW, BAR = 720, 4, 150, 26, 18, 12
SHOWN_TOKENS = 24


@dataclass(frozen=True)
class Part:
    """Neighbouring nodes of one run that are drawn as one.

    Attributes:
        nodes: how many nodes.
        depth: depth position of the first token.
        tokens: tokens of the nodes.
        sequences: sequences through the first node.
        text: the first tokens, as text where they can be decoded.
        more: tokens after those.
    """

    nodes: int
    depth: int
    tokens: int
    sequences: int
    text: str
    more: int

    def __str__(self) -> str:
        joined = "" if self.nodes == 1 else f" in {say_count(self.nodes, 'node')}"
        return (
            f"{say_count(self.tokens, 'token')}{joined} at depth {self.depth:,}, "
            f"{say_count(self.sequences, 'sequence')}: {self.text}"
            + (f" … ({say_count(self.more, 'more token')})" if self.more else "")
        )


@dataclass(frozen=True)
class DrawnRun:
    """One row of the drawing.

    Attributes:
        parent: row of the run it hangs from; -1 for a run that starts at a root.
        parts: its parts, along the path.
        hidden: runs that hang from it, directly or not, and are not drawn.
        hidden_tokens: tokens of these.
    """

    parent: int
    parts: tuple[Part, ...]
    hidden: int
    hidden_tokens: int

    @property
    def depth(self) -> int:
        """Depth position of its first token."""
        return self.parts[0].depth

    @property
    def tokens(self) -> int:
        """Tokens of the run."""
        return sum(part.tokens for part in self.parts)


@dataclass(frozen=True)
class Drawing:
    """A tree drawn, and the same as rows.

    Attributes:
        svg: the drawing; its classes get their colours from the page.
        runs: what is drawn, in packed order.
        note: how much of the tree is drawn.
    """

    svg: str
    runs: tuple[DrawnRun, ...]
    note: str


def draw_tree(tree: PrefixTree, name: str, decode: Decode | None = None) -> Drawing:
    """Draw a tree of any size within a bounded size.

    Runs with the largest subtrees are drawn, so that what a drawn run hangs from is drawn too.

    Args:
        tree: the tree, one root or several.
        name: what the drawing is called for those who do not see it.
        decode: token ids to text; None: ids are shown.

    Returns:
        The drawing.
    """
    found = find_runs(tree)
    below = found.subtree_ends - found.starts
    # A run's subtree is larger than those of the runs that hang from it.
    chosen = np.sort(np.argsort(-below, kind="stable")[:MOST_RUNS])
    scale = (WIDTH - LEFT - RIGHT) / max(int(tree.sequence_lengths.max(initial=0)), 1)
    runs = tuple(_drawn(tree, found, chosen, decode, scale))
    drawn = sum(run.tokens for run in runs)
    note = f"{say_count(len(found), 'run')}, {say_count(tree.num_tokens, 'token')}"
    if len(runs) < len(found):
        note = (
            f"{len(runs)} of {say_count(len(found), 'run')} drawn, those with most tokens below "
            f"them; they hold {drawn:,} of {tree.num_tokens:,} tokens"
        )
    return Drawing("".join(_svg(runs, name, scale)), runs, note)


def _drawn(
    tree: PrefixTree, found: Runs, chosen: np.ndarray, decode: Decode | None, scale: float
) -> Iterator[DrawnRun]:
    row_of = {int(run): row for row, run in enumerate(chosen)}
    hidden, hidden_tokens = np.zeros(len(chosen), np.int64), np.zeros(len(chosen), np.int64)
    nearest = np.full(len(found), -1)  # the drawn run above each run, or itself
    for run in range(len(found)):
        if run in row_of:
            nearest[run] = row_of[run]
        elif found.parents[run] >= 0:
            nearest[run] = nearest[found.parents[run]]
            hidden[nearest[run]] += 1
            hidden_tokens[nearest[run]] += found.ends[run] - found.starts[run]
    for row, run in enumerate(chosen):
        parent = int(found.parents[run])
        yield DrawnRun(
            parent=row_of[parent] if parent >= 0 else -1,
            parts=tuple(_parts(tree, int(found.starts[run]), int(found.ends[run]), decode, scale)),
            hidden=int(hidden[row]),
            hidden_tokens=int(hidden_tokens[row]),
        )


def _parts(
    tree: PrefixTree, start: int, end: int, decode: Decode | None, scale: float
) -> Iterator[Part]:
    first = int(tree.token_nodes[start])
    last = int(tree.token_nodes[end - 1])
    while first <= last:
        begin = int(tree.node_starts[first])
        # The first node whose end makes the part wide enough; a rest too narrow joins it.
        wide = begin + NARROWEST / scale
        after = int(np.searchsorted(tree.node_starts, wide, side="left"))
        after = min(max(after, first + 1), last + 1)
        if end - int(tree.node_starts[after]) < NARROWEST / scale:
            after = last + 1
        stop = int(tree.node_starts[after])
        ids = tree.tokens[begin : min(stop, begin + SHOWN_TOKENS)].tolist()
        yield Part(
            nodes=after - first,
            depth=int(tree.depth_starts[first]),
            tokens=stop - begin,
            sequences=int(tree.path_counts[first]),
            text=decode(ids) if decode is not None else " ".join(map(str, ids)),
            more=stop - begin - len(ids),
        )
        first = after


def _svg(runs: Sequence[DrawnRun], name: str, scale: float) -> Iterator[str]:
    height = TOP + ROW * max(len(runs), 1) + 4
    yield (
        f'<svg class="tree" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(name)}"><title>{escape(name)}</title>'
    )
    for tick in find_ticks(0, (WIDTH - LEFT - RIGHT) / scale):
        x = LEFT + tick * scale
        yield (
            f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6}" y2="{height}"/>'
            f'<text class="tick" x="{x:.1f}" y="{TOP - 11}">{say_short(tick)}</text>'
        )
    most = max((part.sequences for run in runs for part in run.parts), default=1)
    for row, run in enumerate(runs):
        top = TOP + ROW * row
        x = LEFT + run.depth * scale
        if run.parent >= 0:
            above = TOP + ROW * run.parent + BAR
            yield f'<path class="link" d="M{x:.1f} {above}V{top + BAR / 2}"/>'
        for part in run.parts:
            left, width = LEFT + part.depth * scale, max(part.tokens * scale, 1.5)
            shade = 0.4 + 0.6 * np.log1p(part.sequences) / np.log1p(most)
            yield (
                f'<rect class="part" x="{left:.1f}" y="{top}" width="{width:.1f}" height="{BAR}" '
                f'fill-opacity="{shade:.2f}"><title>{escape(part)}</title></rect>'
            )
        end = LEFT + (run.depth + run.tokens) * scale + 6
        more = f" +{run.hidden:,}" if run.hidden else ""
        yield (
            f'<text class="label" x="{end:.1f}" y="{top + BAR - 2}">'
            f"{say_short(run.tokens)} \u00d7 {run.parts[0].sequences:,}{more}</text>"
        )
    yield "</svg>"
