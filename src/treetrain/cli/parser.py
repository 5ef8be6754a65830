"""The parser of the command line: argparse with suggestions, and help whose examples keep lines."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any


class _Formatter(argparse.HelpFormatter):
    """Breaks lines of text as argparse does, but for text that has lines of its own."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" not in text:
            return super()._fill_text(text, width, indent)
        return "\n".join(indent + line for line in text.splitlines())


class Parser(argparse.ArgumentParser):
    """Refuses an unknown option first, with the one that may have been meant."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **{"formatter_class": _Formatter, **keywords})

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride] (has overloads)
        self, args: Any = None, namespace: Any = None
    ) -> Any:
        """Look at the names of options, then parse.

        Args:
            args: the words.
            namespace: what argparse puts the values in.

        Returns:
            What argparse returns.
        """
        self._check_options(args or ())
        return super().parse_known_args(args, namespace)

    def _check_options(self, words: Sequence[str]) -> None:
        known = [name for name in self._option_string_actions if name.startswith("--")]
        for word in words:
            name = word.partition("=")[0]
            # What follows a verb is for the parser of that verb; what follows "--" is no option.
            if name == "--" or (self._subparsers is not None and not word.startswith("-")):
                return
            if name.startswith("--") and not any(option.startswith(name) for option in known):
                self.error(f"unknown option {name}{suggest(name, known)}")


def suggest(word: str, known: Iterable[str]) -> str:
    """Name the word that may have been meant.

    Args:
        word: what was written.
        known: what it could have been.

    Returns:
        The end of a sentence; empty where nothing is near.

    Example:
        >>> suggest("trian", ["train", "plan"])
        "; did you mean 'train'?"
    """
    close = get_close_matches(word, list(known), n=1)
    return f"; did you mean '{close[0]}'?" if close else ""
