from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# Time limits belong in benchmarks: a busy machine fails no test.
settings.register_profile("treetrain", deadline=None)
settings.load_profile("treetrain")

# A shell that starts the tests in the background has Ctrl-C ignored, here and in child processes.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of the public extracts; tests that need it are skipped where it is missing."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("TREETRAIN_SHARED_DATA", default))
    if not folder.is_dir():
        pytest.skip(f"no real inputs: {folder} is missing, set TREETRAIN_SHARED_DATA")
    return folder


@pytest.fixture
def write_rows(tmp_path: Path) -> Any:
    """Writes rows as JSON lines."""

    def write(*rows: Any, name: str = "data.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return path

    return write
