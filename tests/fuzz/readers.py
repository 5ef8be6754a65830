"""All readers that are fuzzed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from tests.fuzz.forms import alter
from tests.fuzz.promise import Outcome
from tests.fuzz.row_readers import Reader, row_readers


def all_readers() -> Iterator[Reader]:
    """Lists the readers.

    Yields:
        The readers; those of runs last, which load torch and make a run.
    """
    yield from row_readers()
    from tests.fuzz.run_readers import run_readers

    yield from run_readers()


def alter_for(reader: Reader, data: bytes, random: Random) -> bytes:
    """Alters a file as its reader is used to it.

    Args:
        reader: the reader.
        data: the file.
        random: what decides.

    Returns:
        The altered file.
    """
    return alter(data, reader.form, random, others=reader.others)


def check_in_new_folder(reader: Reader, data: bytes) -> Outcome | None:
    """Reads a file in an empty folder.

    Args:
        reader: the reader.
        data: the file.

    Returns:
        What became of it; None where the file could not be made.
    """
    with TemporaryDirectory() as folder:
        return reader.check(data, Path(folder))
