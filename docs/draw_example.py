"""Draws the tree and the mask of the small example, from the library's own arrays.

`python docs/draw_example.py` writes `img/tree.svg` and `img/mask.svg` beside this file.
"""

from __future__ import annotations

from pathlib import Path

from treetrain import PrefixTree, build_prefix_tree
from treetrain.tree.runs import find_runs, find_slices

SEQUENCES = ([1, 2, 3, 4, 5], [1, 2, 3, 6, 7], [1, 2, 3, 6, 7, 8, 9])
FOLDER = Path(__file__).parent / "img"
CELL = 44
LEFT, TOP = 110, 60
FILLS = ("#a5d6a7", "#90caf9", "#ffcc80", "#ce93d8")


def draw_tree(tree: PrefixTree) -> str:
    """Draws a tree: places on the path from left to right, one row for each run.

    Args:
        tree: the tree.

    Returns:
        The drawing as SVG.
    """
    runs = find_runs(tree)
    depths = tree.depth_positions.tolist()
    rows = [run for run in range(len(runs)) for _ in range(runs.starts[run], runs.ends[run])]
    places = [
        (LEFT + depth * CELL, TOP + row * 2 * CELL) for depth, row in zip(depths, rows, strict=True)
    ]
    parts = [_text(LEFT - 14, TOP - 26, "depth position", "end")]
    parts += [
        _text(LEFT + (depth + 0.5) * CELL, TOP - 26, str(depth)) for depth in range(max(depths) + 1)
    ]
    for token, predecessor in enumerate(tree.predecessors.tolist()):
        if predecessor >= 0 and rows[token] != rows[predecessor]:
            x, y = places[predecessor]
            to_x, to_y = places[token]
            edge, middle = x + CELL, to_y + CELL / 2
            line = f"M{x + CELL - 8} {y + CELL - 4} C{edge} {to_y} {edge} {middle} {to_x} {middle}"
            parts.append(f'<path d="{line}" fill="none" stroke="#616161"/>')
    for token, (x, y) in enumerate(places):
        fill = FILLS[int(tree.token_nodes[token]) % len(FILLS)]
        parts.append(_cell(x, y, fill))
        parts.append(_text(x + CELL / 2, y + CELL / 2, str(tree.tokens[token]), size=18))
        parts.append(_text(x + CELL - 5, y + CELL - 7, str(token), "end", size=9))
    node_ends = tree.node_starts[1:].tolist()
    for sequence, node in enumerate(tree.sequence_nodes.tolist()):
        x, y = places[node_ends[node] - 1]
        parts.append(_text(x + CELL / 2, y + CELL + 14, f"{sequence} ends", size=11))
    for run in range(len(runs)):
        parts.append(_text(LEFT - 14, TOP + (2 * run + 0.5) * CELL, f"run {run}", "end"))
    width = LEFT + (max(depths) + 2) * CELL
    return _svg(width, TOP + 2 * len(runs) * CELL, parts)


def draw_mask(tree: PrefixTree) -> str:
    """Draws which packed token reads which, one colour for each slice.

    Args:
        tree: the tree.

    Returns:
        The drawing as SVG.
    """
    slices = find_slices(tree)
    visible: dict[tuple[int, int], int] = {}
    for number in range(len(slices)):
        for q in range(slices.q_starts[number], slices.q_ends[number]):
            last = q + 1 if slices.causal[number] else slices.k_ends[number]
            for k in range(slices.k_starts[number], last):
                visible[q, k] = number
    tokens = tree.tokens.tolist()
    parts = [
        _text(LEFT, TOP - 42, "token that is read", "start", size=11),
        _text(LEFT - 14, TOP - 14, "token that reads", "end", size=11),
    ]
    for index, token in enumerate(tokens):
        parts.append(_text(LEFT + (index + 0.5) * CELL, TOP - 14, str(token), size=16))
        parts.append(_text(LEFT - 14, TOP + (index + 0.5) * CELL, str(token), "end", size=16))
        parts.append(_text(LEFT - 2, TOP + (index + 0.8) * CELL, str(index), "end", size=9))
    for q in range(len(tokens)):
        for k in range(len(tokens)):
            number = visible.get((q, k))
            fill = "#f5f5f5" if number is None else FILLS[number % len(FILLS)]
            parts.append(_cell(LEFT + k * CELL, TOP + q * CELL, fill))
    for number in range(len(slices)):
        kind = "causal" if slices.causal[number] else "full"
        queries = f"[{slices.q_starts[number]},{slices.q_ends[number]})"
        keys = f"[{slices.k_starts[number]},{slices.k_ends[number]})"
        y = TOP + (len(tokens) + 0.6 + number * 0.55) * CELL
        parts.append(
            f'<rect x="{LEFT}" y="{y - 8}" width="16" height="16" '
            f'fill="{FILLS[number % len(FILLS)]}"/>'
        )
        parts.append(_text(LEFT + 26, y, f"{kind} slice: tokens {queries} read {keys}", "start"))
    height = TOP + (len(tokens) + 0.7 + len(slices) * 0.55) * CELL
    return _svg(LEFT + (len(tokens) + 1) * CELL, int(height), parts)


def _cell(x: float, y: float, fill: str) -> str:
    return f'<rect x="{x}" y="{y}" width="{CELL}" height="{CELL}" fill="{fill}" stroke="#bdbdbd"/>'


def _text(x: float, y: float, words: str, anchor: str = "middle", *, size: int = 12) -> str:
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}" '
        f'dominant-baseline="central">{words}</text>'
    )


def _svg(width: int, height: int, parts: list[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" fill="#212121">'
    )
    paper = f'<rect width="{width}" height="{height}" fill="#ffffff"/>'
    return "\n".join([head, paper, *parts, "</svg>"]) + "\n"


def draw_all() -> dict[str, str]:
    """Draws everything that the pages show.

    Returns:
        Drawings by file name.
    """
    tree = build_prefix_tree(SEQUENCES)
    return {"tree.svg": draw_tree(tree), "mask.svg": draw_mask(tree)}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, drawing in draw_all().items():
        (FOLDER / name).write_text(drawing, encoding="utf-8")
