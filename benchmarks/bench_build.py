"""Time and peak memory of building prefix trees.

Peak memory counts what building allocates, the tree included, in bytes; the input counts as it is
handed over: arrays by their bytes, lists by the lists' own size without the integers in them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from harness import Figures, make_parser, measure_peak, run_cases, time_in_turns
from numpy.typing import NDArray

from treetrain.tree import PrefixTree, build_from_nodes, build_prefix_tree

Tokens = NDArray[np.int64]
VOCABULARY = 151_936


def agent_turns(rng: np.random.Generator) -> list[Tokens]:
    """64 turns, a system prompt of 8,000 tokens, 400 more a turn, 80 rewritten every 8 turns."""
    history = _draw(rng, 8_000)
    sequences = [history]
    for turn in range(1, 64):
        if turn % 8 == 0:
            history = np.concatenate([history[:-80], _draw(rng, 80)])
        history = np.concatenate([history, _draw(rng, 400)])
        sequences.append(history)
    return sequences


def grpo_groups(rng: np.random.Generator) -> list[Tokens]:
    """8 prompts of 4,096 tokens with 16 samples of 4,096 each."""
    prompts = [_draw(rng, 4_096) for _ in range(8)]
    return [np.concatenate([prompt, _draw(rng, 4_096)]) for prompt in prompts for _ in range(16)]


def nested_turns(rng: np.random.Generator) -> list[Tokens]:
    """2,000 turns of one token, each with a last token of its own: a branch at every turn."""
    history = _draw(rng, 2_000)
    branches = VOCABULARY + np.arange(2_000)
    return [np.append(history[: turn + 1], branches[turn]) for turn in range(2_000)]


def short_sequences(rng: np.random.Generator) -> list[Tokens]:
    """100,000 sequences of 50 tokens, each 100 of which share 30, in random order."""
    prefixes = np.repeat(rng.integers(0, VOCABULARY, (1_000, 30)), 100, axis=0)
    rows = np.concatenate([prefixes, rng.integers(0, VOCABULARY, (100_000, 20))], axis=1)
    return list(rows[rng.permutation(len(rows))])


def deep_nodes(rng: np.random.Generator) -> tuple[list[Tokens], Tokens]:
    """20,000 nodes of 8 tokens, shuffled: a path of 10,000 and a leaf below each of its nodes."""
    tokens = rng.integers(0, VOCABULARY, (20_000, 8))
    tokens[:, 0] = np.arange(20_000)
    spine = np.arange(-1, 9_999)
    parents = np.concatenate([spine, spine])
    shuffled = rng.permutation(20_000)
    places = np.append(np.argsort(shuffled), -1)
    return list(tokens[shuffled]), places[parents[shuffled]]


def measure(
    build: Callable[[], PrefixTree], *, kind: str, input_bytes: int, rounds: int
) -> Figures:
    """Build several times and return the figures."""
    tree = build()
    times = time_in_turns({"build": build}, rounds=rounds).spread("build")
    peak = measure_peak(build)
    return {
        "flat_tokens": int(tree.sequence_lengths.sum()),
        "tree_tokens": tree.num_tokens,
        "input": kind,
        "seconds": times.median,
        "seconds_low": times.low,
        "seconds_high": times.high,
        "peak_bytes": peak,
        "input_bytes": input_bytes,
        "peak_ratio": peak / input_bytes,
    }


def measure_arrays(make: Callable[[np.random.Generator], list[Tokens]], seed: int) -> Figures:
    """Measure building from int64 arrays."""
    arrays = make(np.random.default_rng(seed))
    return measure(
        partial(build_prefix_tree, arrays),
        kind="int64 arrays",
        input_bytes=_array_bytes(arrays),
        rounds=9,
    )


def measure_lists(make: Callable[[np.random.Generator], list[Tokens]], seed: int) -> Figures:
    """Measure building from Python lists."""
    lists = [array.tolist() for array in make(np.random.default_rng(seed))]
    return measure(
        partial(build_prefix_tree, lists),
        kind="lists",
        input_bytes=sum(map(sys.getsizeof, lists)),
        rounds=9,
    )


def measure_nodes(seed: int) -> Figures:
    """Measure building from nodes with parent links."""
    tokens, parents = deep_nodes(np.random.default_rng(seed))
    return measure(
        partial(build_from_nodes, tokens, parents),
        kind="nodes",
        input_bytes=_array_bytes([*tokens, parents]),
        rounds=9,
    )


def _draw(rng: np.random.Generator, count: int) -> Tokens:
    return rng.integers(0, VOCABULARY, count)


def _array_bytes(arrays: Sequence[Tokens]) -> int:
    return sum(array.nbytes for array in arrays)


def main() -> None:
    """Run the benchmark."""
    parser = make_parser("Time and peak memory of building prefix trees.")
    arguments = parser.parse_args()
    makers = {
        "agent-64-turns": agent_turns,
        "grpo-8x16": grpo_groups,
        "nested-2000-turns": nested_turns,
        "short-100000": short_sequences,
    }
    cases: dict[str, Callable[[], Figures]] = {}
    for name, make in makers.items():
        cases[f"{name}-arrays"] = partial(measure_arrays, make, arguments.seed)
        cases[f"{name}-lists"] = partial(measure_lists, make, arguments.seed)
    cases["deep-20000-nodes"] = partial(measure_nodes, arguments.seed)
    run_cases(cases, arguments, parser)


if __name__ == "__main__":
    main()
