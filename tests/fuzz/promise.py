"""What every reader owes, whatever it is given: an error that names the place, or an account.

A broken promise is what hypothesis and the atheris run look for. An error is a `ValueError` or an
`OSError` that names the file; anything else that leaves a reader is a fault.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from treetrain.cli.main import main
from treetrain.data.report import ReadReport
from treetrain.data.rows import iter_samples
from treetrain.data.sample import Sample

#: Names of what a sample holds.
HELD = tuple(Sample.__dataclass_fields__)


class BrokenPromiseError(AssertionError):
    """A reader broke its promise."""


@dataclass(frozen=True)
class Outcome:
    """What became of an input.

    Attributes:
        told: the error, or None where it was accepted.
        rows: rows that sequences were made of.
        skipped: rows that were skipped, each by name.
    """

    told: str | None
    rows: int = 0
    skipped: int = 0


def expect(holds: object, what: str) -> None:
    """Finds a fault where something does not hold.

    Args:
        holds: whether it does.
        what: what is wrong otherwise.

    Raises:
        BrokenPromiseError: it does not.
    """
    if not holds:
        raise BrokenPromiseError(what)


def attempt(read: Callable[[], Any], names: Sequence[str]) -> tuple[Any, str | None]:
    """Reads, and checks an error's type and words.

    Args:
        read: reads.
        names: of which the message has one: the file's, or the argument's.

    Returns:
        What was read and None, or None and the message.

    Raises:
        BrokenPromiseError: another error came, or none of the names is in its message.
    """
    try:
        return read(), None
    except (ValueError, OSError) as error:
        told = str(error)
        expect(any(name in told for name in names), f"names none of {names}: {told}")
        return None, told
    except Exception as error:
        raise BrokenPromiseError(f"{type(error).__name__}: {error}") from error


@dataclass
class _Pass:
    samples: list[Sample] = field(default_factory=list)
    report: ReadReport = field(default_factory=lambda: ReadReport(""))
    told: str | None = None


def check_rows(
    path: Path,
    reading: dict[str, Any],
    *,
    names: Sequence[str],
    rows: int | None = None,
    lines: Sequence[bytes] | None = None,
) -> Outcome:
    """Reads a file of rows with wrong ones skipped and not, and compares the two.

    Args:
        path: the file or folder.
        reading: further arguments of `iter_samples`.
        names: of which an error names one.
        rows: how many rows there are by another way of counting; None: not known.
        lines: the lines of a file of JSON lines: each is also read alone, and the whole file must
            give what they give one after the other.

    Returns:
        The outcome with wrong rows skipped.

    Raises:
        BrokenPromiseError: what is owed is not given.
    """
    plain = _read(path, reading, names=names, skip=False)
    skipping = _read(path, reading, names=names, skip=True)
    report = skipping.report
    skipped = report.skipped
    places = [place_of(wrong) for wrong in skipped]
    expect(None not in places, f"a skipped row names no row: {skipped}")
    expect(len(set(places)) == len(places), f"a row was skipped twice: {places}")
    sources = {place_of(sample.source or "") for sample in skipping.samples}
    expect(not sources & set(places), f"rows are both read and skipped: {sources} {places}")
    expect(report.rows_read >= 0, f"more was left out than there was: {report}")
    if plain.told is None:
        expect(skipping.told is None, f"refused only where rows are skipped: {skipping.told}")
        expect(not skipped, f"skipped what is right: {skipped}")
        expect(same(plain.samples, skipping.samples), "skipping changes what right rows give")
    elif skipped:
        expect(skipped[0] == plain.told, f"skipped {skipped[0]!r}, refused {plain.told!r}")
    else:
        expect(skipping.told == plain.told, f"refused {plain.told!r}, then {skipping.told!r}")
    if skipping.told is None:
        expect(report.sequences == len(skipping.samples) > 0, "sequences are miscounted")
        kinds, said = report.kinds.total(), report.taken_for.total()
        expect(kinds == said >= report.rows_read, f"{kinds} kinds of {report.rows_read} rows")
    broken_off = skipping.told is not None and "at least one sequence" not in skipping.told
    if rows is not None and not broken_off:
        expect(report.rows == rows, f"{report.rows} rows counted, there are {rows}")
    if lines is not None:
        expect(not broken_off, f"lines hide each other: {skipping.told}")
        _check_lines(path, reading, lines, skipping)
    return Outcome(skipping.told, 0 if skipping.told else report.rows_read, len(skipped))


def check_command(path: Path, words: Sequence[str], names: Sequence[str], told: bool) -> None:
    """Runs `treetrain inspect --json` in this process.

    Args:
        path: the file.
        words: further options.
        names: of which an error names one.
        told: whether the library refuses the file.

    Raises:
        BrokenPromiseError: something but an exit code comes out of it, or output that is neither
            JSON nor a message.
    """
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    error = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            code = main(["inspect", str(path), "--json", *words])
        except (Exception, SystemExit) as fault:
            raise BrokenPromiseError(
                f"the command let through {type(fault).__name__}: {fault}"
            ) from fault
        out.flush()
        error.flush()
    printed, said = out.buffer.getvalue().decode(), error.buffer.getvalue().decode()  # type: ignore[attr-defined]
    expect("Traceback" not in said, f"a traceback: {said}")
    # What each row holds may be right, and together they make no trees.
    expect(code == 2 or (code == 0 and not told), f"exit code {code} where {told=}: {said}")
    if code:
        last = said.splitlines()[-1]
        expect(last.startswith("treetrain: "), f"no message: {said}")
        expect(any(name in last for name in names), f"names none of {names}: {last}")
        expect(not printed, f"printed {printed!r} and failed")
        return
    found = json.loads(printed, parse_constant=_refuse_constant)
    skipped = len(found["skipped_rows"])
    expect(found["rows"] >= found["rows_read"] + skipped > 0, f"rows are missing in {printed}")


def same(some: Sequence[Sample], others: Sequence[Sample]) -> bool:
    """Compares sequences with everything they hold.

    Args:
        some: sequences.
        others: sequences.

    Returns:
        Whether they are equal to the last bit.
    """
    return [_values(one) for one in some] == [_values(one) for one in others]


def place_of(text: str) -> str | None:
    """Finds the row that a message or a source names.

    Args:
        text: what begins with file and line, file and index, or file and row.

    Returns:
        That beginning, or None.
    """
    found = re.match(r"[^:\[]+(:row \d+|:\d+|\[\d+\])", text)
    return None if found is None else found[0]


def _read(path: Path, reading: dict[str, Any], *, names: Sequence[str], skip: bool) -> _Pass:
    found = _Pass(report=ReadReport(str(path)))

    def read() -> None:
        # What came before an error counts.
        found.samples.extend(iter_samples(path, found.report, skip_bad_rows=skip, **reading))

    _, found.told = attempt(read, names)
    return found


def _check_lines(path: Path, reading: dict[str, Any], lines: Sequence[bytes], whole: _Pass) -> None:
    """Reads each line alone, at its own place in an otherwise empty file."""
    samples: list[Sample] = []
    wrong: list[str] = []
    alone = path.with_name("alone") / path.name
    alone.parent.mkdir(exist_ok=True)
    for number, line in enumerate(lines):
        if not line.strip():
            continue
        alone.write_bytes(b"\n" * number + line)
        found = _read(alone, reading, names=(path.name,), skip=False)
        samples += found.samples
        if found.told is not None and "at least one sequence" not in found.told:
            wrong.append(found.told)
    expect(wrong == whole.report.skipped, f"alone: {wrong}; together: {whole.report.skipped}")
    expect(same(samples, whole.samples), "lines give other sequences alone than together")


def _values(sample: Sample) -> list[Any]:
    found = [getattr(sample, name) for name in HELD]
    return [
        (one.dtype.str, one.tobytes()) if hasattr(one, "tobytes") else repr(one) for one in found
    ]


def _refuse_constant(name: str) -> float:
    raise BrokenPromiseError(f"printed {name}, which is no JSON")
