from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_site_builds_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for page in (ROOT / "docs").rglob("*.md"):
        assert (tmp_path / page.relative_to(ROOT / "docs")).with_suffix(".html").is_file()
    for page in tmp_path.rglob("*.html"):
        # Nothing is loaded from elsewhere; links may lead there.
        text = page.read_text(encoding="utf-8")
        for mark in ('src="http', "src='http", 'rel="stylesheet" href="http', "@import"):
            assert mark not in text, (page.name, mark)
