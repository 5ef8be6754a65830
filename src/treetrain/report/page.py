"""One page of HTML about data, a check and a run: what is given is shown, the rest is left out.

The page stands alone: no script, nothing loaded from elsewhere, and a policy that forbids both.
Everything that comes from data goes through `safe_text`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import treetrain
from treetrain.errors import naming_file
from treetrain.report.check_section import show_check
from treetrain.report.curve_section import show_run
from treetrain.report.data_sections import show_groups, show_partings, show_savings
from treetrain.report.draw_tree import Decode
from treetrain.report.measured_section import show_measurement
from treetrain.report.outcome_sections import show_agreement, show_attempts
from treetrain.report.safe_text import escape
from treetrain.report.tree_section import show_trees
from treetrain.tree.prefix_tree import PrefixTree
from treetrain.wording import say_count

Json = Mapping[str, Any]

_STYLE = Path(__file__).with_name("page.css")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
CONFIG_SHOWN = 20_000  # characters
_BEGIN = "<!doctype html>"


@dataclass(frozen=True)
class PageContent:
    """What a page can show.

    Attributes:
        title: its heading.
        notes: sentences that a reader must know.
        inspection: what `tables.as_json` made of an inspection, or None.
        trees: the trees to draw, each with its name.
        decode: token ids to text; None: ids are shown.
        check: a report of `verify` as values, or None.
        steps: lines of `metrics.jsonl`.
        measurement: step times of both ways, as the demo measures them, or None.
        agreement: parameters after the same steps both ways, as the demo compares them, or None.
        attempts: what became of held-out tasks, as the demo's model did them, or None.
        config: the configuration of the run as text, or None.
    """

    title: str
    notes: Sequence[str] = ()
    inspection: Json | None = None
    trees: Sequence[tuple[str, PrefixTree]] = ()
    decode: Decode | None = field(default=None, repr=False)
    check: Json | None = None
    steps: Sequence[Json] = ()
    measurement: Json | None = None
    agreement: Json | None = None
    attempts: Json | None = None
    config: str | None = None


def render_page(content: PageContent) -> str:
    """Write a page.

    Args:
        content: what it shows.

    Returns:
        A whole HTML document that UTF-8 can hold.
    """
    title, style = escape(content.title, 120), _STYLE.read_text(encoding="utf-8")
    return (
        f'{_BEGIN}\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f'<link rel="icon" href="data:,"><title>{title}</title><style>{style}</style></head>'
        f"<body><main><h1><bdi>{title}</bdi></h1>"
        f'<p class="soft">treetrain {escape(treetrain.__version__)}</p>\n'
        + "\n".join(part for part in _parts(content) if part)
        + "\n</main></body></html>\n"
    )


def is_page(path: Path) -> bool:
    """Tell whether a page can be written over a file, which then loses nothing but a page.

    Args:
        path: the file.

    Returns:
        Whether it begins as a page does, or is empty.
    """
    with path.open("rb") as file:
        return file.read(len(_BEGIN)).lower() in (b"", _BEGIN.encode())


def write_page(path: Path, content: PageContent) -> None:
    """Write a page into a file, all of it or nothing.

    Args:
        path: the file; replaced where there is one.
        content: what the page shows.
    """
    partial = path.with_name(f".{path.name}.partial")
    text = render_page(content)
    with naming_file(path):
        try:
            partial.write_text(text, encoding="utf-8")
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)


def _parts(content: PageContent) -> Iterator[str]:
    yield from (f"<p>note: <bdi>{escape(note, 1000)}</bdi></p>" for note in content.notes)
    if content.inspection is not None:
        yield show_savings(content.inspection)
    if content.check is not None:
        yield show_check(content.check)
    if content.steps:
        yield show_run(content.steps)
    if content.measurement is not None:
        yield show_measurement(content.measurement)
    if content.agreement is not None:
        yield show_agreement(content.agreement)
    if content.attempts is not None:
        yield show_attempts(content.attempts)
    if content.trees:
        yield show_trees(content.trees, content.decode)
    if content.inspection is not None:
        yield show_groups(content.inspection)
        yield show_partings(content.inspection)
    if content.config is not None:
        yield (
            '<h2>Configuration</h2><div class="scroll" tabindex="0" role="group" '
            f'aria-label="configuration"><pre>{_lines(content.config)}</pre></div>'
        )


def _lines(text: str) -> str:
    # Line ends are the only control characters that stay what they are.
    shown = text[:CONFIG_SHOWN].split("\n")
    cut = len(text) - CONFIG_SHOWN
    more = f"\n… ({say_count(cut, 'more character')})" if cut > 0 else ""
    return "\n".join(escape(line, 1000) for line in shown) + more
