from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# Time limits belong in benchmarks: a busy machine fails no test.
settings.register_profile("treetrain", deadline=None)
settings.load_profile("treetrain")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of the public extracts; tests that need it are skipped where it is missing."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("TREETRAIN_SHARED_DATA", default))
    if not folder.is_dir():
        pytest.skip(f"no real inputs: {folder} is missing, set TREETRAIN_SHARED_DATA")
    return folder
