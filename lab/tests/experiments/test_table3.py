"""The systems of the table do the same k-means, and what cannot be run says why."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from cloister.core.errors import DataError
from cloister_lab.experiments import spu_kmeans, table3
from cloister_lab.experiments.environments import json_of
from cloister_lab.experiments.mixtures import Mixture
from cloister_lab.experiments.run import Settings
from cloister_lab.lloyd import lloyd


@pytest.mark.parametrize("k", [1, 2, 3, 5, 8])
def test_the_tournament_is_one_step_of_kmeans(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(numpy=np))
    monkeypatch.setitem(sys.modules, "jax.numpy", np)
    rng = np.random.default_rng(k)
    X, centres = rng.uniform(-1, 1, (200, 3)), rng.uniform(-1, 1, (k, 3))
    if k > 1:
        centres[-1] = 50.0  # nobody is near
    np.testing.assert_allclose(spu_kmeans.step(X, centres), lloyd(X, centres, 1), atol=1e-6)


def test_without_a_python_for_spu_the_row_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(table3, "_over_mpi", lambda file, method, delay: "no mpirun")
    monkeypatch.setattr(table3, "_on_shares", lambda *problem: "no time")
    rows = table3.measure(Mixture(100, 2, 2, 0.2), 0, 1, fetch=False)
    assert [row["method"] for row in rows] == [
        *("cloister fastlloyd", "cloister auto", "cloister fastlloyd, with delays"),
        *("cloister shares", "SPU ABY3", "SPU CHEETAH"),
    ]
    assert [bool(row["skipped"]) for row in rows] == [True] * 6
    with pytest.raises(DataError, match="nothing could be measured: SPU's environment"):
        table3.figures(rows, tmp_path)
    assert not list(tmp_path.iterdir())


def test_our_own_shares_give_the_exact_centres_and_say_what_they_send() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(0, 3, (60, 2))
    found = table3._on_shares(2, X, X[:3])
    assert found["error"] < 1e-3
    assert found["bytes"] > 60 * 2 * 8


def test_an_environment_that_cannot_be_made_is_not_taken_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(table3, "SPU_PACKAGES", ("no-such-package==0",))
    monkeypatch.setattr(table3.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(table3.sys, "version_info", (3, 11))
    for _ in range(2):
        assert str(table3.spu_python(fetch=True)).startswith("SPU's environment could not be made")


def test_a_program_that_fails_is_quoted(tmp_path: Path) -> None:
    code = "import sys; print('{}'); sys.exit('out of luck')"
    found = json_of([sys.executable, "-c", code], {})
    assert isinstance(found, str)
    assert "out of luck" in found
    assert json_of([str(tmp_path / "nothing")], {}) == "nothing gave no answer: FileNotFoundError"


def test_ratios_are_to_fastlloyd_on_the_same_problem(tmp_path: Path) -> None:
    rows = [
        {
            **{"n": n, "n_features": 2, "n_clusters": 2, "method": method, "skipped": None},
            **{"seconds": seconds, "spread": None, "bytes": size, "error": None},
        }
        for n, method, seconds, size in (
            (10, "cloister fastlloyd", 0.5, 100),
            (10, "SPU ABY3", 5.0, 1000),
            (20, "cloister fastlloyd", 1.0, 100),
            (20, "SPU ABY3", 30.0, 4000),
        )
    ]
    table3.figures(rows, tmp_path)
    page = (tmp_path / "table3.md").read_text()
    assert "| 10 | 2 | 2 | SPU ABY3 | 5,000 | 1 | 10 | 10 |  |" in page
    assert "| 20 | 2 | 2 | SPU ABY3 | 30,000 | 4 | 30 | 40 |  |" in page


def test_what_the_paper_prints_stands_beside_ours_with_its_bytes(tmp_path: Path) -> None:
    row: dict[str, object] = {
        **{"n": 10_000, "n_features": 2, "n_clusters": 2, "method": "cloister fastlloyd"},
        **{"seconds": 0.002, "spread": 0.0003, "bytes": 1920, "error": None, "skipped": None},
    }
    table3.figures([row], tmp_path)  # type: ignore[list-item]  # all are values of rows
    page = (tmp_path / "table3.md").read_text()
    assert "| cloister fastlloyd | 2 ± 0.3 | 1.92 | 1 | 1 |  |" in page
    assert "| the paper's FastLloyd | 3.03 | 0.192 |  | 0.1 |  |" in page
    assert "| the paper's MohLloyd | 10,500 |  |  |  |  |" in page
    assert "10.0 to 10.0 times the paper's bytes" in page


def test_the_paper_s_rows_are_all_there(shared_data: Path) -> None:
    units = table3.units(Settings(Path("unused"), full=True, data_dir=shared_data, repeats=1))
    assert len(units) == 8 + 2
    assert sum("-equal" in unit.key for unit in units) == 8
    for size in (table3._PAPER_WORD * k * (d + 1) for d, k in ((2, 2), (2, 5), (2, 3), (2, 15))):
        assert size in (192, 480, 288, 1440)  # as printed
