"""What a partition reads of its ancestors and hands back: keys, values and their gradients.

A partition's queries read the keys and values of the path from a root to where the partition hangs.
They are detached; their gradients are summed here, in float32 or wider, over all descendants, and
each partition adds the sum to its own gradients once. Which tokens these are is worked out by
`parts`; when partitions run and when memory is freed is the affair of whoever runs them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(eq=False)
class LayerStore:
    """Keys and values of one attention layer for the tokens of a partition that descendants read.

    Attributes:
        key: keys after any rotary embedding, [B, Hk, n, D], detached; None before they are
            recorded.
        value: values, [B, Hk, n, Dv], detached; None before they are recorded.
        grad_key: sum of the gradients that descendants gave back, shaped like `key`, float32 or
            wider; None before the first.
        grad_value: the same for `value`.
    """

    key: Tensor | None = None
    value: Tensor | None = None
    grad_key: Tensor | None = None
    grad_value: Tensor | None = None

    def add(self, rows: slice, grad_key: Tensor, grad_value: Tensor) -> None:
        """Add gradients of some tokens.

        Args:
            rows: which of the n tokens.
            grad_key: gradient of their keys, [B, Hk, rows, D], float32 or wider.
            grad_value: gradient of their values, [B, Hk, rows, Dv], float32 or wider.
        """
        assert self.key is not None
        assert self.value is not None
        if self.grad_key is None or self.grad_value is None:
            self.grad_key = torch.zeros_like(self.key, dtype=grad_key.dtype)
            self.grad_value = torch.zeros_like(self.value, dtype=grad_value.dtype)
        self.grad_key[:, :, rows] += grad_key
        self.grad_value[:, :, rows] += grad_value


@dataclass(frozen=True, eq=False)
class LayerGateway:
    """The gateway of a partition in one attention layer.

    Attributes:
        ancestors: where keys and values of the ancestors are, in the order of the path: stores of
            earlier partitions and which of their tokens; G tokens together.
        kept: where the partition's own keys and values are kept for its descendants: a store and
            which rows it holds, in what order; none where no partition hangs from it, several where
            several partitions run as one row.
        copy: whether stores hold copies, so that what the rows are part of can be freed.
    """

    ancestors: Sequence[tuple[LayerStore, slice]]
    kept: Sequence[tuple[LayerStore, Sequence[slice]]]
    copy: bool

    @property
    def num_ancestors(self) -> int:
        """Number of ancestors' tokens G."""
        return sum(rows.stop - rows.start for _, rows in self.ancestors)

    def without_first(self, count: int) -> LayerGateway:
        """The same gateway without the first ancestors, which a window or a chunk hides.

        Args:
            count: how many tokens at the front of the path to leave out, at most G.

        Returns:
            A gateway to G - count tokens of the same stores.
        """
        left: list[tuple[LayerStore, slice]] = []
        for store, rows in self.ancestors:
            hidden = min(count, rows.stop - rows.start)
            count -= hidden
            if rows.start + hidden < rows.stop:
                left.append((store, slice(rows.start + hidden, rows.stop)))
        return dataclasses.replace(self, ancestors=left)

    def read(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Put the ancestors' keys and values before a partition's own.

        Args:
            key: the partition's own keys, [B, Hk, T, D].
            value: its own values, [B, Hk, T, Dv].

        Returns:
            Keys [B, Hk, G + T, D] and values [B, Hk, G + T, Dv], dtype of the own ones; without
            ancestors the own ones themselves.
        """
        if not self.ancestors:
            return key, value
        keys: list[Tensor] = []
        values: list[Tensor] = []
        for store, rows in self.ancestors:
            assert store.key is not None
            assert store.value is not None
            keys.append(store.key[:, :, rows].to(key.dtype))
            values.append(store.value[:, :, rows].to(value.dtype))
        return torch.cat([*keys, key], dim=2), torch.cat([*values, value], dim=2)

    def record(self, key: Tensor, value: Tensor) -> None:
        """Keep a partition's own keys and values for its descendants, the first time they are told.

        Args:
            key: the partition's own keys, [B, Hk, T, D].
            value: its own values, [B, Hk, T, Dv].
        """
        for store, intervals in self.kept:
            if store.key is None:
                store.key = self._keep(key, intervals)
                store.value = self._keep(value, intervals)

    def _keep(self, tensor: Tensor, intervals: Sequence[slice]) -> Tensor:
        parts = [tensor.detach()[:, :, rows] for rows in intervals]
        if len(parts) != 1:
            return torch.cat(parts, dim=2)
        return parts[0].clone() if self.copy else parts[0]

    def give_back(self, start: int, grad_key: Tensor, grad_value: Tensor) -> None:
        """Hand gradients back to a stretch of the ancestors, of which gradients of stretches add.

        Args:
            start: which of the G ancestors is the first.
            grad_key: gradient of the keys of n ancestors, [B, Hk, n, D], float32 or wider.
            grad_value: gradient of their values, [B, Hk, n, Dv], float32 or wider.
        """
        end, first = start + grad_key.shape[2], 0
        for store, rows in self.ancestors:
            size = rows.stop - rows.start
            low, high = max(start - first, 0), min(end - first, size)
            if low < high:
                part = slice(first + low - start, first + high - start)
                own = slice(rows.start + low, rows.start + high)
                store.add(own, grad_key[:, :, part], grad_value[:, :, part])
            first += size

    def add_given_back(self, grad_key: Tensor, grad_value: Tensor) -> None:
        """Add what descendants gave back to a partition's own gradients, in place.

        Args:
            grad_key: gradient of the own keys, [B, Hk, T, D], float32 or wider.
            grad_value: gradient of the own values, [B, Hk, T, Dv], float32 or wider.
        """
        for store, intervals in self.kept:
            if store.grad_key is None or store.grad_value is None:
                continue
            start = 0
            for rows in intervals:
                end = start + rows.stop - rows.start
                grad_key[:, :, rows] += store.grad_key[:, :, start:end]
                grad_value[:, :, rows] += store.grad_value[:, :, start:end]
                start = end
