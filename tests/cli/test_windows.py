"""Commands for a desk do without what only POSIX has; parties are refused where it is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from .as_on_windows import OTHERS, PARTIES


def test_a_desk_on_windows_runs_all_but_the_parties(tmp_path: Path) -> None:
    script = Path(__file__).with_name("as_on_windows.py")
    done = subprocess.run(
        [sys.executable, "-X", "warn_default_encoding", script, tmp_path],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    refused = [
        line for line in done.stderr.splitlines() if "file locks, signals and file rights" in line
    ]
    assert len(refused) == len(PARTIES + OTHERS)
    assert all("under WSL" in line for line in refused)
