from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from treetrain.testing.trees import worked_example


@pytest.fixture
def ids(write_rows: Any) -> Path:
    """Rows of token ids: the sequences of the documentation."""
    return write_rows(*({"input_ids": row} for row in worked_example()), name="ids.jsonl")
