"""Fuzzes every reader with atheris: files altered further where that reached new code.

`make fuzz` runs it. Each reader has a process of its own, so that a crash ends only that; a fault
is written down with the file that led to it, and the search goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import atheris

#: One file may take so long and so much before that is a fault.
SECONDS, MEBIBYTES = 10, 1024
COLUMNS = ("inputs", "accepted", "refused", "rows read", "rows skipped", "seconds", "faults")


@dataclass
class Tally:
    """What became of the files of one reader."""

    reader: str
    inputs: int = 0
    accepted: int = 0
    refused: int = 0
    rows: int = 0
    skipped: int = 0
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)


def main() -> int:
    """Fuzzes all readers, or one of them in this process.

    Returns:
        Exit code: 1 where there was a fault.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--inputs", type=int, default=100_000, help="files in total")
    parser.add_argument("--jobs", type=int, default=2, help="readers at a time")
    parser.add_argument("--seed", type=int, default=1, help="of what is altered")
    parser.add_argument("--only", default="", help="readers whose names contain this")
    parser.add_argument("--out", type=Path, default=Path("runs/fuzz"), help="log and faults")
    parser.add_argument("--reader", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.reader is not None:
        _fuzz(args.reader, args.inputs, args.seed, args.out)
        return 0
    from tests.fuzz.readers import all_readers

    # As it was when the search began.
    head = f"commit {_commit()}, Python {sys.version.split()[0]}, seed {args.seed}"
    names = [reader.name for reader in all_readers() if args.only in reader.name]
    share = -(-args.inputs // len(names))
    with ThreadPoolExecutor(args.jobs) as pool:
        tallies = list(pool.map(lambda name: _run(name, share, args), names))
    log = args.out / "fuzz.log"
    log.write_text("\n".join([head, *_lines(tallies)]) + "\n", encoding="utf-8")
    print(log.read_text(encoding="utf-8"))
    return int(any(tally.faults for tally in tallies))


def _run(name: str, share: int, args: argparse.Namespace) -> Tally:
    """Fuzzes a reader in a process of its own."""
    place = args.out / _file_name(name)
    place.with_suffix(".json").unlink(missing_ok=True)
    words = [f"--reader={name}", "--inputs", str(share), "--seed", str(args.seed)]
    with place.with_suffix(".txt").open("wb") as told:
        code = subprocess.run(
            [sys.executable, "-m", "tests.fuzz.run_atheris", *words, "--out", str(args.out)],
            stdout=told,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
    found = place.with_suffix(".json")
    tally = Tally(name)
    if found.exists():
        values = json.loads(found.read_text(encoding="utf-8"))
        tally = Tally(**{**values, "faults": Counter(values["faults"])})
    if code:
        tally.faults[f"the process ended with {code}; {place.with_suffix('.txt')}"] += 1
    print(_row(name, tally), file=sys.stderr, flush=True)
    return tally


def _fuzz(name: str, share: int, seed: int, out: Path) -> None:
    """Fuzzes a reader in this process, which ends with it."""
    with atheris.instrument_imports(include=["treetrain"]):
        from tests.fuzz.promise import BrokenPromiseError
        from tests.fuzz.readers import all_readers, alter_for, check_in_new_folder

        reader = next(one for one in all_readers() if one.name == name)
    tally = Tally(name)
    start = time.monotonic()

    def mutate(data: bytes, most: int, number: int) -> bytes:
        random = Random(number)
        way = random.random()
        if way < 0.2:
            return bytes(atheris.Mutate(data, most))
        # What was altered often is refused at its first row.
        data = random.choice(reader.seeds) if way < 0.6 else data
        return alter_for(reader, data, random)[:most]

    def try_one(data: bytes) -> None:
        before, memory = time.process_time(), _peak()
        outcome = None
        try:
            outcome = check_in_new_folder(reader, data)
            if outcome is None:
                return
            tally.accepted += outcome.told is None
            tally.refused += outcome.told is not None
            tally.rows += outcome.rows
            tally.skipped += outcome.skipped
            taken = time.process_time() - before
            if taken > SECONDS:
                raise BrokenPromiseError(f"took {taken:.0f} s")
            if _peak() - memory > MEBIBYTES:
                raise BrokenPromiseError(f"took {_peak() - memory:.0f} MiB")
        except BrokenPromiseError as error:
            _note_fault(tally, error, data, out)
        tally.inputs += 1
        if tally.inputs == share:
            tally.seconds = round(time.monotonic() - start, 1)
            text = json.dumps(vars(tally))
            (out / _file_name(name)).with_suffix(".json").write_text(text, encoding="utf-8")
            sys.stdout.flush()
            # Nothing but its end stops libFuzzer.
            os._exit(0)

    with TemporaryDirectory() as folder:
        for number, data in enumerate(reader.seeds):
            (Path(folder) / str(number)).write_bytes(data)
        options = [f"-seed={seed}", "-max_len=32768", "-timeout=120", "-rss_limit_mb=8192"]
        prefix = f"-artifact_prefix={out / _file_name(name)}-"
        atheris.Setup([sys.argv[0], folder, *options, prefix], try_one, custom_mutator=mutate)
        atheris.Fuzz()


def _note_fault(tally: Tally, error: Exception, data: bytes, out: Path) -> None:
    cause: BaseException = error.__cause__ or error
    trace, place = cause.__traceback__, ""
    while trace is not None:
        code = trace.tb_frame.f_code
        if "treetrain" in code.co_filename or not place:
            place = f"{Path(code.co_filename).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    what = f"{type(cause).__name__} at {place}: {str(error)[:200]!r}"
    if what not in tally.faults:
        name = f"{_file_name(tally.reader)}-fault-{len(tally.faults)}"
        (out / name).write_bytes(data)
    tally.faults[what] += 1


def _peak() -> float:
    """Largest memory so far, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _file_name(name: str) -> str:
    return "".join(one if one.isalnum() else "-" for one in name).strip("-")


def _row(name: str, tally: Tally) -> str:
    values: list[Any] = [tally.inputs, tally.accepted, tally.refused, tally.rows, tally.skipped]
    values += [tally.seconds, tally.faults.total()]
    return f"{name:<36}" + "".join(f"{value:>13,}" for value in values)


def _commit() -> str:
    words = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()


def _lines(tallies: list[Tally]) -> list[str]:
    total = Tally("all")
    for tally in tallies:
        for name in ("inputs", "accepted", "refused", "rows", "skipped", "seconds"):
            setattr(total, name, getattr(total, name) + getattr(tally, name))
        total.faults += tally.faults
    total.seconds = round(total.seconds, 1)
    return [
        f"{'reader':<36}" + "".join(f"{name:>13}" for name in COLUMNS),
        *(_row(tally.reader, tally) for tally in (*tallies, total)),
        *(f"{one.reader}: {n} x {what}" for one in tallies for what, n in one.faults.items()),
    ]


if __name__ == "__main__":
    sys.exit(main())
