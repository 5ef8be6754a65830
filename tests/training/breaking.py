"""Attention that leaks, to see that a run notices."""

from __future__ import annotations

import torch

from treetrain.attention import reference
from treetrain.training import run as run_module


def break_attention(monkeypatch):
    original = run_module.prepare

    def prepare_then_break(model, backend):
        handle = original(model, "reference")
        find = reference.find_visibility

        def leaky(packed, *, window=None, chunk=None):
            right = find(packed, window=window, chunk=chunk)
            return right | torch.ones_like(right).tril()

        monkeypatch.setattr(reference, "find_visibility", leaky)
        return handle

    monkeypatch.setattr(run_module, "prepare", prepare_then_break)
