"""The benchmark of whole fits measures every method or says why not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def methods(benchmark_named: Callable[[str], ModuleType]) -> ModuleType:
    return benchmark_named("methods")


def test_a_fit_is_measured_beside_its_peer_in_a_process_of_its_own(
    methods: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "methods.json"
    words = ["--methods", "eugkm", "--tables", "iris", "digits", "--out", str(out)]
    assert methods.main(words) == 0
    cells = [methods.Cell(**cell) for cell in json.loads(out.read_text())["results"]]
    measured = [cell for cell in cells if cell.seconds is not None]
    assert len(cells) == 2
    assert len(measured) == 1
    assert all(cell.ratio > 0 for cell in measured)
    table = capsys.readouterr().out
    assert "| eugkm | digits | | | | | a grid over 64 columns" in table


def test_a_missed_bar_is_the_exit_code(
    methods: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--methods", "auto", "--tables", "adult", "--out", str(tmp_path / "m.json")]
    for seconds, code in ((0.4, 0), (0.6, 1)):
        cell = methods.Cell("auto", "adult", seconds, 0.1, 1.0)
        monkeypatch.setattr(methods, "measure_apart", lambda *_, cell=cell: cell)
        assert methods.main(words) == code
