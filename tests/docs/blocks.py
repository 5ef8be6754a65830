"""Blocks of code in the pages, and how what they print is held against what they say."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[-+]\d+)?")
# Figures below it are errors of rounding, which differ from machine to machine.
ROUNDING = 1e-4


@dataclass(frozen=True)
class Block:
    """A fenced block: the word after the fence, its text, and the line it begins in."""

    kind: str
    text: str
    line: int


def read_blocks(path: Path) -> list[Block]:
    text = path.read_text(encoding="utf-8")
    fences = re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.S | re.M)
    return [Block(match[1], match[2], text.count("\n", 0, match.start()) + 1) for match in fences]


def said_prints(code: str) -> list[str]:
    """What the comments behind calls of print say that they print."""
    return re.findall(r"^\s*print\(.*\)\s+# (.*)$", code, re.M)


def find_difference(said: str, printed: str) -> str | None:
    """Names the first said line that was not printed; `...` stands for anything."""
    lines = iter(printed.splitlines())
    skipped = False
    for line in said.rstrip().splitlines():
        if line.strip() == "...":
            skipped = True
            continue
        for candidate in lines:
            if same_line(line, candidate):
                break
            if not skipped:
                return f"{line!r} was printed as {candidate!r}"
        else:
            return f"{line!r} was not printed"
        skipped = False
    rest = [line for line in lines if line.strip()]
    return f"{rest[0]!r} was printed and is not said" if rest and not skipped else None


def same_line(said: str, printed: str) -> bool:
    pattern = ".*".join(
        NUMBER.sub("(NUMBER)", part).replace("(NUMBER)", "\0") for part in said.split("...")
    )
    pattern = re.escape(pattern).replace(re.escape("\0"), f"({NUMBER.pattern})")
    match = re.fullmatch(pattern.replace(r"\.\*", ".*"), printed.rstrip())
    if match is None:
        return False
    return all(map(same_number, NUMBER.findall(said), match.groups()))


def same_number(said: str, printed: str) -> bool:
    one, other = (float(number.replace(",", "")) for number in (said, printed))
    if "." not in said and "e" not in said:
        return one == other
    return abs(one - other) <= 0.02 * abs(one) or max(one, other) < ROUNDING
