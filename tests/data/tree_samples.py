"""Samples of every kind that a tree file holds, and how two are told apart."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
from hypothesis import strategies as st

from treetrain.data.sample import Sample
from treetrain.data.written_rows import VALUES

numbers = st.floats(allow_nan=False, allow_infinity=False)
names = st.none() | st.text(max_size=3) | st.integers(-(2**70), 2**70)


@st.composite
def sample_lists(draw: st.DrawFn) -> list[Sample]:
    """Lists of samples in up to three groups, with shared prefixes, duplicates and empty ones."""
    groups = draw(st.lists(names, min_size=1, max_size=3, unique=True))
    keyed = {group: draw(st.booleans()) for group in groups}
    samples: list[Sample] = []
    for _ in range(draw(st.integers(1, 8))):
        group = draw(st.sampled_from(groups))
        tokens = draw(st.lists(st.sampled_from([0, 1, 2**31 - 1]), max_size=6))

        def per_token(entries: st.SearchStrategy[Any], length: int = len(tokens)) -> Any:
            return draw(st.lists(entries, min_size=length, max_size=length))

        values = {
            name: draw(st.none() | numbers) if draw(st.booleans()) else per_token(numbers)
            for name in VALUES
            if name != "logprobs"
        }
        if "logprobs" in VALUES and draw(st.booleans()):
            values["logprobs"] = per_token(numbers)
        samples.append(
            Sample(
                tokens,
                per_token(st.sampled_from([0.0, -0.0, 1.0, 0.1])),
                keys=per_token(st.integers(-(2**63), 2**63 - 1)) if keyed[group] else None,
                group=group,
                trajectory=draw(names),
                source=draw(st.none() | st.text(max_size=3)),
                **values,
            )
        )
    return samples


def contents(sample: Sample) -> list[Any]:
    """Everything a sample holds, arrays as type and bytes and floats as bits."""
    found: list[Any] = []
    for one in fields(Sample):
        value = getattr(sample, one.name)
        if isinstance(value, np.ndarray):
            found.append((one.name, value.dtype.str, value.tobytes()))
        else:
            found.append((one.name, type(value), value.hex() if type(value) is float else value))
    return found
