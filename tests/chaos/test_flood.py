"""Three seconds of what ``tests/chaos/flood.py`` does for a minute, with real processes."""

from __future__ import annotations

from pathlib import Path

from .flood import beset


def test_a_short_flood_ends_no_open_stream_and_fills_no_log(tmp_path: Path) -> None:
    seen = beset(tmp_path, seconds=3.0, rate=150.0, shared=False, says="hello")
    assert seen["opened"]["opened"] > 0
    assert seen["streams lost"] == 0
    assert seen["log, bytes"] < 50_000
