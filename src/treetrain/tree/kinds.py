"""The kinds of integers that callers hand over: which are allowed, and how errors say it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Kind:
    """What the integers of an argument stand for and which are allowed.

    Attributes:
        name: the argument's name, for errors.
        noun: what one entry is, for errors.
        low: smallest entry allowed.
        high: largest entry allowed.
        code: `struct` code of the type that holds them, "i" (int32) or "q" (int64).
        way_out: what to do about an entry that is not allowed, for errors.
    """

    name: str
    noun: str
    low: int
    high: int
    code: str
    way_out: str

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type that holds the entries."""
        return np.dtype(self.code)


def token_kind(name: str) -> Kind:
    """Return the kind of token ids: 0 to 2^31 - 1, held as int32.

    Args:
        name: the argument's name, for errors.

    Returns:
        The kind.
    """
    return Kind(name, "token id", 0, 2**31 - 1, "i", "remove padding and ignore marks first")


def key_kind(name: str) -> Kind:
    """Return the kind of side keys: any int64.

    Args:
        name: the argument's name, for errors.

    Returns:
        The kind.
    """
    return Kind(name, "key", -(2**63), 2**63 - 1, "q", "number the distinct keys instead")


def index_kind(name: str, count: int) -> Kind:
    """Return the kind of node indices: 0 to `count` - 1, or -1.

    Args:
        name: the argument's name, for errors.
        count: number of nodes.

    Returns:
        The kind.
    """
    return Kind(name, "node index", -1, count - 1, "q", "-1 stands for no node")
