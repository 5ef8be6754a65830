"""Merging equal paths of a tree of single tokens, whatever its shape."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from treetrain.tree.ranges import Ints


def merge_tokens(tokens: NDArray[Any], keys: Ints | None, before: Ints) -> tuple[Ints, Ints, Ints]:
    """Merge the tokens that end equal paths.

    Tokens get equal names when the last one, two, four, ... tokens of their paths are equal, until
    the names cover whole paths: as many rounds as the depth has bits, none per token.

    Args:
        tokens: token ids, [n].
        keys: keys that have to be equal too, [n], or None.
        before: index of the token before each on its path, smaller than its own, [n]; -1 for none.

    Returns:
        Index of one token of each merged path, ascending, [m]; for each the entry of that list
        before it, smaller than its own, [m], -1 for none; and for each token the entry it merged
        into, [n + 1], the last one -1 for the index -1.
    """
    count = len(tokens)
    names = _name_pairs(tokens, np.zeros(count, np.int64) if keys is None else keys)
    # The entry beyond the last is the place before all tokens, which leads to itself.
    names = np.append(names, 0)
    links = np.append(before, -1)
    while (links >= 0).any():
        names[:-1] = _name_pairs(names[:-1], names[links[:-1]])
        links = links[links]
    _, kept, merged = np.unique(names[:-1], return_index=True, return_inverse=True)
    # Numbered by first appearance, so that a path comes before those that go on from it.
    order = np.argsort(kept)
    places = np.empty(len(kept), np.int64)
    places[order] = np.arange(len(kept))
    entries = np.append(places[merged.reshape(-1)], -1)
    kept = kept[order]
    return kept, entries[before[kept]], entries


def _name_pairs(first: NDArray[Any], second: Ints) -> Ints:
    """Return equal positive numbers for equal pairs, different ones for different pairs, [n]."""
    order = np.lexsort((second, first))
    is_new = np.diff(first[order], prepend=-1) != 0
    is_new[1:] |= np.diff(second[order]) != 0
    names = np.empty(len(order), np.int64)
    names[order] = np.cumsum(is_new)
    return names
