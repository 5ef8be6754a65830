"""The fixed family of trees that every floor is tested on, and random forests.

Only lists of integers are made here, so that a baseline can be built from them without any of the
package's own structures.
"""

from __future__ import annotations

import numpy as np

VOCABULARY = 64
"""Every token id below is smaller than this, so that a tiny model has a row for each."""


def worked_example() -> list[list[int]]:
    """Return the three sequences of the documentation: 17 flat tokens, 9 tree tokens, 4 nodes.

    Returns:
        The sequences.
    """
    return [[1, 2, 3, 4, 5], [1, 2, 3, 6, 7], [1, 2, 3, 6, 7, 8, 9]]


def tree_family() -> dict[str, list[list[int]]]:
    """Return the fixed family of trees, small enough to run a model on each.

    Returns:
        For each name the sequences, ids from 1 to `VOCABULARY` - 1. The names, in order:

        - `worked_example`: the sequences of the documentation.
        - `one_sequence`: a single path.
        - `one_token`: a single sequence of a single token, which has no target.
        - `equal_sequences`: exact duplicates, of two different sequences.
        - `strict_prefix`, `longer_first`: one sequence a prefix of another, in both orders.
        - `several_roots`: no common prefix.
        - `empty_sequence`: sequences without tokens among others.
        - `star`: many children of one node.
        - `chain`: every sequence a prefix of the next.
        - `comb`: at each step one branch ends and one goes on.
        - `uneven`: three and more levels, leaves at different depths, siblings permuted.
        - `one_token_nodes`: every node holds one token.
        - `branch_at_127`, `branch_at_128`, `branch_at_129`: the branch point around a tile's edge.
        - `first_token_after_branch`: children of one token each, right after the branch.
    """
    prompt = _tokens(12, seed=1)
    comb = [prompt + _tokens(3 * step, seed=2) + _tokens(4, seed=10 + step) for step in range(6)]
    return {
        "worked_example": worked_example(),
        "one_sequence": [_tokens(20, seed=3)],
        "one_token": [[5]],
        "equal_sequences": [prompt, [*prompt, 9, 8], prompt, [*prompt, 9, 8], prompt],
        "strict_prefix": [[1, 2, 3, 4], [1, 2, 3, 4, 5, 6]],
        "longer_first": [[1, 2, 3, 4, 5, 6], [1, 2, 3, 4]],
        "several_roots": [[1, 2], [7, 8], [9, 10, 11, 12], [9, 10, 13]],
        "empty_sequence": [[], [4, 5, 6], [], [4, 5, 7]],
        "star": [[*prompt, child, *_tokens(child % 5, seed=child)] for child in range(1, 17)],
        "chain": [_tokens(length, seed=4) for length in range(2, 34, 3)],
        "comb": comb,
        "uneven": [
            [1, 2, 12, 13, 22],
            [1, 2, 10, 11, 20, 30, 31, 32, 40],
            [1, 2, 10, 11, 21],
            [1, 2, 12, 13, 23, 24, 25],
            [1, 2, 10, 11, 20, 30, 31, 33],
            [1, 2, 10, 11, 20, 34],
            [1, 3],
        ],
        "one_token_nodes": [[1, a, b, c] for a in (2, 3) for b in (4, 5) for c in (6, 7)],
        "branch_at_127": _branch_at(127),
        "branch_at_128": _branch_at(128),
        "branch_at_129": _branch_at(129),
        "first_token_after_branch": [[*prompt, child] for child in (7, 8, 9)],
    }


def random_forest(
    rng: np.random.Generator,
    *,
    roots: int = 2,
    depth: int = 5,
    children: int = 3,
    node_tokens: int = 5,
    vocabulary: int = VOCABULARY,
) -> list[list[int]]:
    """Return the sequences of a random forest, in random order.

    Each tree has a path of at least three nodes. Leaves always end a sequence, inner nodes
    sometimes do, and some sequences stand twice.

    Args:
        rng: source of every choice.
        roots: number of trees.
        depth: most nodes on a path, at least 3.
        children: most children of a node, at least 2.
        node_tokens: most tokens of a node, at least 1.
        vocabulary: ids are 1 to `vocabulary` - 1; more than `roots` and `children`.

    Returns:
        The sequences.

    Raises:
        ValueError: a limit is smaller than said above.
    """
    if roots < 1 or depth < 3 or children < 2 or node_tokens < 1:
        raise ValueError(
            "roots, depth, children and node_tokens must be at least 1, 3, 2 and 1, got "
            f"{roots}, {depth}, {children} and {node_tokens}"
        )
    if vocabulary <= max(roots, children):
        raise ValueError(
            f"vocabulary must be more than roots and children ({roots}, {children}), "
            f"got {vocabulary}"
        )
    sequences: list[list[int]] = []
    # An open place is a path and whether its next node must go on, which makes the three levels.
    open_places: list[tuple[list[int], int, int, bool]] = [
        ([], 1, first, True) for first in _distinct(rng, roots, vocabulary)
    ]
    while open_places:
        prefix, level, first, goes_on = open_places.pop()
        rest = rng.integers(1, vocabulary, rng.integers(0, node_tokens)).tolist()
        path = [*prefix, first, *rest]
        is_inner = level < depth and ((goes_on and level < 3) or bool(rng.random() < 0.5))
        ends_here = 1 if not is_inner else int(rng.random() < 0.3)
        sequences.extend([path] * (ends_here * int(rng.choice([1, 1, 1, 2]))))
        if is_inner:
            firsts = _distinct(rng, int(rng.integers(2, children + 1)), vocabulary)
            open_places.extend(
                (path, level + 1, child, goes_on and place == 0)
                for place, child in enumerate(firsts)
            )
    return [sequences[index] for index in rng.permutation(len(sequences))]


def _distinct(rng: np.random.Generator, count: int, vocabulary: int) -> list[int]:
    return (rng.choice(vocabulary - 1, count, replace=False) + 1).tolist()


def _tokens(count: int, *, seed: int) -> list[int]:
    """Return the first tokens of one endless sequence per seed."""
    return [
        (seed * 17 + place * (place + seed) * 5 + place // 7) % 63 + 1 for place in range(count)
    ]


def _branch_at(place: int) -> list[list[int]]:
    prefix = _tokens(place, seed=6)
    return [[*prefix, 1, 2, 3], [*prefix, 4, 5], [*prefix, 6, 7, 8, 9]]
