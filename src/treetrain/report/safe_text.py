"""Text of data, made fit to stand in a page: escaped, bounded, nothing in it that is not seen.

Whatever a row holds ends up here before it ends up in HTML or SVG, whose escapes are the same.
"""

from __future__ import annotations

import html
import unicodedata

from treetrain.wording import say_count

#: Characters of one text that a page shows, unless a place has its own bound.
LONGEST = 240
MOST_MARKS = 4

#: Joiners are part of words and of pictures; every other format character is written as its number.
_JOINERS = "\u200c\u200d"
_NAMED = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}


def shorten(text: str, longest: int = LONGEST) -> str:
    """Cut a text, and say how much was cut.

    Args:
        text: any text.
        longest: characters that are kept.

    Returns:
        The text, or its beginning and the number of characters that follow.

    Example:
        >>> shorten("abcdef", 4)
        'abcd … (2 more characters)'
    """
    if len(text) <= longest:
        return text
    return f"{text[:longest]} … ({say_count(len(text) - longest, 'more character')})"


def reveal(text: str) -> str:
    r"""Write characters that cannot be seen, or that move others, as their numbers.

    Args:
        text: any text, lone surrogates included.

    Returns:
        Text without control and format characters, separators of lines, surrogates and unassigned
        characters, which UTF-8 can hold. Of marks that are put onto one letter, those after the
        fourth are numbers too: a tower of them covers what stands above.

    Example:
        >>> reveal("a\x00b\u202ec\ud800\n")
        'a\\x00b\\u202ec\\ud800\\n'
    """
    shown: list[str] = []
    marks = 0
    for character in text:
        marks = marks + 1 if unicodedata.category(character) in ("Mn", "Me") else 0
        kept = _is_seen(character) and marks <= MOST_MARKS
        shown.append(character if kept else _number(character))
    return "".join(shown)


def escape(value: object, longest: int = LONGEST) -> str:
    """Make a value of the data fit to stand in HTML or SVG, between tags or in an attribute.

    Args:
        value: text, or anything that `str` makes text of.
        longest: characters that are kept.

    Returns:
        Markup that shows the text and does nothing else.

    Example:
        >>> escape('</script>"')
        '&lt;/script&gt;&quot;'
    """
    return html.escape(reveal(shorten(str(value), longest)), quote=True)


def _is_seen(character: str) -> bool:
    if character.isprintable() or character in _JOINERS:
        return True
    # Spaces of every width are no printable characters to Python, and harmless.
    return unicodedata.category(character) == "Zs"


def _number(character: str) -> str:
    if character in _NAMED:
        return _NAMED[character]
    code = ord(character)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
