"""What every benchmark here shares: its command line, paired timing, peak memory, the machine.

A benchmark hands over named cases, each a function that measures and returns its figures. With
`--json` one object is printed and nothing else:
`{"machine": {...}, "results": [{"name": ..., ...}]}`.
"""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import json
import os
import platform
import sys
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter

Figures = dict[str, object]
Case = Callable[[], Figures]


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of repeated measurements.

    Attributes:
        median: the middle value.
        low: first quartile.
        high: third quartile.
    """

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Timings:
    """Times of contestants that took turns, round by round.

    Attributes:
        seconds: for each contestant one time a round, in order.
    """

    seconds: Mapping[str, Sequence[float]]

    def spread(self, name: str) -> Spread:
        """Return median and quartiles of a contestant's times, in seconds."""
        return spread_of(self.seconds[name])

    def speedup(self, slow: str, fast: str) -> Spread:
        """Return how many times faster one is than another, compared within each round."""
        pairs = zip(self.seconds[slow], self.seconds[fast], strict=True)
        return spread_of([of_slow / of_fast for of_slow, of_fast in pairs])


def spread_of(values: Sequence[float]) -> Spread:
    """Return median and quartiles of at least one value."""
    if len(values) < 2:
        return Spread(values[0], values[0], values[0])
    low, _, high = quantiles(values, n=4, method="inclusive")
    return Spread(median(values), low, high)


def time_in_turns(
    contestants: Mapping[str, Callable[[], object] | Sequence[Callable[[], object]]],
    *,
    rounds: int,
    warmup: int = 1,
    slots: int = 1,
    settle: bool = False,
) -> Timings:
    """Time contestants in one process, taking turns, so that the machine's moods hit all alike.

    A machine's speed changes within seconds. Where one contestant takes many times as long as
    another, a round is cut into slots: the long one, given as a sequence of parts, does some of its
    parts in each, and the short one is called once in each, which counts as their mean.

    Args:
        contestants: what to call, by name: one function, or parts that are called in order.
        rounds: calls of each that count.
        warmup: calls of each, before, that do not.
        slots: number of turns that each has in a round.
        settle: whether a turn begins with a call (of parts: of the next one) that does not count,
            because the one before left its own data in the caches and its own holes in memory.

    Returns:
        The times, one a round for each. Every slot starts with another contestant.
    """
    names = list(contestants)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    turn = -warmup * slots
    for number in range(-warmup, rounds):
        elapsed = dict.fromkeys(names, 0.0)
        for slot in range(slots):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                contestant = contestants[name]
                if callable(contestant):
                    calls, share = [contestant], 1 / slots
                else:
                    first, last = (len(contestant) * place // slots for place in (slot, slot + 1))
                    calls, share = contestant[first:last], 1.0
                if settle:
                    calls[0]()
                elapsed[name] += _time(calls) * share
            turn += 1
        if number >= 0:
            for name in names:
                seconds[name].append(elapsed[name])
    return Timings(seconds)


def _time(functions: Sequence[Callable[[], object]]) -> float:
    """Call functions one after the other, without garbage collection, and return the seconds."""
    collects = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        start = perf_counter()
        for function in functions:
            function()
        return perf_counter() - start
    finally:
        if collects:
            gc.enable()


def measure_peak(function: Callable[[], object]) -> int:
    """Return the most bytes that Python and numpy held at once during a call, above those before.

    torch's own memory is not counted. The result of the call is.
    """
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        result = function()
        peak = tracemalloc.get_traced_memory()[1]
        del result
        return peak - before
    finally:
        tracemalloc.stop()


def describe_machine(seed: int) -> dict[str, object]:
    """Return the hardware, the versions of what is loaded, and the seed; no host's name."""
    machine: dict[str, object] = {
        "cpu": _cpu_model(),
        "architecture": platform.machine(),
        "cores": _available_cores(),
        "threads": _threads(),
        "system": platform.system(),
        "python": platform.python_version(),
    }
    for package in ("numpy", "torch", "transformers"):
        if package in sys.modules:
            machine[package] = importlib.metadata.version(package)
    return {**machine, "seed": seed}


def make_parser(description: str) -> argparse.ArgumentParser:
    """Return a parser of the arguments that every benchmark takes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print one JSON object, nothing else")
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="run this case only; may be repeated"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of every random input (0)")
    return parser


def run_cases(
    cases: Mapping[str, Case], arguments: argparse.Namespace, parser: argparse.ArgumentParser
) -> None:
    """Run the chosen cases and print what they measured.

    Args:
        cases: functions that measure, by name.
        arguments: what `parser` read.
        parser: from `make_parser`; it reports a name that does not exist.
    """
    chosen: list[str] = arguments.only or list(cases)
    for name in chosen:
        if name not in cases:
            parser.error(f"--only must be one of {', '.join(cases)}, got {name}")
    results: list[Figures] = []
    for name in chosen:
        results.append({"name": name, **cases[name]()})
        if not arguments.json:
            _print_row(results)
    machine = describe_machine(arguments.seed)
    if arguments.json:
        print(json.dumps({"machine": machine, "results": results}))
    else:
        print("\n" + ", ".join(f"{key} {value}" for key, value in machine.items()))


def _print_row(results: list[Figures]) -> None:
    last = results[-1]
    if len(results) == 1 or list(last) != list(results[-2]):
        print("  ".join([f"{'name':32}", *(f"{key:>14}" for key in last if key != "name")]))
    cells = [f"{_format(value):>{max(14, len(key))}}" for key, value in last.items()][1:]
    print("  ".join([f"{last['name']:32}", *cells]), flush=True)


def _format(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _cpu_model() -> str:
    listing = Path("/proc/cpuinfo")
    if listing.exists():
        for line in listing.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _available_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _threads() -> int:
    torch = sys.modules.get("torch")
    if torch is not None:
        return torch.get_num_threads()
    return int(os.environ.get("OMP_NUM_THREADS", "0")) or _available_cores()
