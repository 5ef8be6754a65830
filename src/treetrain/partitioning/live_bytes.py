"""Bytes of tensors that live, operation by operation, of models with values or without.

Every operation that torch dispatches is watched, forward and backward. Memory that a kernel takes
and gives back inside itself, and what an allocator keeps in reserve, is not seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class LiveBytes(TorchDispatchMode):
    """Counts the memory of the tensors that are made inside this context and still referred to.

    Args:
        known: tensors that do not count, nor do results that share their memory.
    """

    def __init__(self, known: Iterable[Tensor]) -> None:
        super().__init__()
        self.live = 0
        self._peak = 0
        # Holding what is known keeps its memory from being named again.
        self._known = [tensor.untyped_storage() for tensor in known]
        self._seen: dict[int, object] = {storage._cdata: None for storage in self._known}

    def take_peak(self, leaving: int = 0) -> int:
        """Give the most bytes that lived at once since the last call, and begin anew.

        Args:
            leaving: bytes that still live and are given up before anything else is made.

        Returns:
            Bytes.
        """
        peak, self._peak = self._peak, self.live - leaving
        return peak

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        del types
        result = func(*args, **(kwargs or {}))
        self._note(result)
        return result

    def _note(self, result: object) -> None:
        if isinstance(result, tuple | list):
            for part in result:
                self._note(part)
        elif isinstance(result, torch.Tensor):
            storage = result.untyped_storage()
            name, size = storage._cdata, storage.nbytes()
            if name in self._seen:
                return

            def forget(_: object) -> None:
                del self._seen[name]
                self.live -= size

            self._seen[name] = weakref.ref(storage, forget)
            self.live += size
            self._peak = max(self._peak, self.live)
