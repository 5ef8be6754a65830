"""Tables, cards and verdicts of a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from treetrain.report.safe_text import escape

#: A cell whose text is one of these is marked.
_MARKS = {"ok": "good", "equal": "good", "too large": "bad", "LEAK": "bad"}


def make_table(
    caption: str,
    heads: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    words: Sequence[int] = (),
) -> str:
    """Write a table that scrolls by itself where it is wider than the page.

    Args:
        caption: what it shows.
        heads: names of its columns.
        rows: cells of each row; the first names the row.
        words: columns that hold sentences rather than figures.

    Returns:
        Markup.
    """
    head = "".join(
        f'<th scope="col"{_class("words" if place in words else "")}>{escape(name)}</th>'
        for place, name in enumerate(heads)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f'<th scope="row"><bdi>{escape(cell)}</bdi></th>'
            if place == 0
            else f"<td{_class('words' if place in words else _MARKS.get(str(cell), ''))}>"
            f"<bdi>{escape(cell)}</bdi></td>"
            for place, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="group" aria-label="{escape(caption)}"><table>'
        f"<caption><span>{escape(caption, 1000)}</span></caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )


def make_cards(figures: Iterable[tuple[str, object]]) -> str:
    """Write figures as a row of cards.

    Args:
        figures: name and value of each.

    Returns:
        Markup.
    """
    cards = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in figures
    )
    return f'<dl class="cards">{cards}</dl>'


def make_verdict(good: bool, word: str, reason: str) -> str:
    """Write a verdict.

    Args:
        good: which of two colours.
        word: the verdict itself.
        reason: what follows it.

    Returns:
        Markup.
    """
    kind = "good" if good else "bad"
    return f'<p class="verdict {kind}"><b>{escape(word)}</b>: <bdi>{escape(reason, 1000)}</bdi></p>'


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""
