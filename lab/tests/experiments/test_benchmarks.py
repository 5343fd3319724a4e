"""The benchmarks run; how fast, no test says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def benchmarks(benchmark_named: Callable[[str], ModuleType]) -> ModuleType:
    pytest.importorskip("opendp")
    return benchmark_named("run")


SMALL = ((400, 2, 3), (300, 8, 2))


def test_step_and_memory_are_measured_for_every_shape(benchmarks: ModuleType) -> None:
    steps = list(benchmarks.local_step(SMALL, repeats=1))
    memory = list(benchmarks.memory(SMALL))
    assert len(steps) == 2 * len(SMALL)
    assert len(memory) == len(SMALL)
    assert all(result.value > 0 and result.ratio > 0 for result in (*steps, *memory))


def test_round_and_samplers_are_measured_beside_their_peers(benchmarks: ModuleType) -> None:
    results = [
        *benchmarks.whole_round(silos=3, n_clusters=2, n_features=3, rounds=3),
        *benchmarks.samplers(size=1000, peer_size=10),
    ]
    assert all(result.value > 0 and result.peer and result.ratio > 0 for result in results)


def test_size_counts_every_dependency_once_and_not_the_large_five(benchmarks: ModuleType) -> None:
    total, with_byte_code, *_ = benchmarks.install_size()
    names = benchmarks._closure("cloister")
    assert {"cryptography", "pydantic-core", "numpy"} <= names
    assert "opendp" not in names  # of an extra
    assert 10 < total.value <= with_byte_code.value


def test_imports_are_timed_in_a_fresh_process(benchmarks: ModuleType) -> None:
    assert all(0 < t < 60 for t in benchmarks._imports(("import json", "import csv"), repeats=1))


def test_a_missed_bar_is_the_exit_code(
    benchmarks: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def section(holds: bool) -> object:
        return lambda: iter([benchmarks.Result("x", 2.0, "ms", "y", 1.0, 2.0, "ratio <= 1", holds)])

    out = tmp_path / "results.json"
    for holds, code in ((True, 0), (False, 1)):
        monkeypatch.setattr(benchmarks, "SECTIONS", {"only": section(holds)})
        assert benchmarks.main(["--out", str(out)]) == code
        assert json.loads(out.read_text())["results"][0]["holds"] is holds
    table = capsys.readouterr().out
    assert "| x | 2 ms | y | 1 ms | 2 | ratio <= 1 | MISSED |" in table
