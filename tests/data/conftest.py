from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import treetrain

SHIPPED = Path(treetrain.__file__).parent / "demo" / "tokenizer"


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """The shipped tokenizer; its template strips thinking from all but the last message."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(SHIPPED)
