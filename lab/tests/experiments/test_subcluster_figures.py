from __future__ import annotations

import math
import warnings
from pathlib import Path

import numpy as np
import pytest

from cloister_lab.experiments.catalogue import EXPERIMENTS
from cloister_lab.experiments.run import (
    Settings,
    draw_experiment,
    run_experiment,
)
from cloister_lab.experiments.subcluster_figures import EPSILONS, INTERNAL_KS, Raw, cost_gaps
from cloister_lab.experiments.sweep import Named

METHODS = {"kmeans-guarantee", "subcluster", "fastlloyd", "kmeans-guarantee-dp", "subcluster-dp"}


def test_the_small_version_has_every_method_epsilon_and_number_of_parts(tmp_path: Path) -> None:
    settings = Settings(tmp_path, repeats=1, only=("iris",))
    rows = run_experiment(EXPERIMENTS["subcluster"], settings, quiet=True)
    found = {(row["method"], row["epsilon"], row["internal_k"]) for row in rows}
    parted = {"subcluster", "subcluster-dp"}
    assert found == {
        (method, epsilon, parts)
        for method in METHODS
        for epsilon in EPSILONS
        for parts in (INTERNAL_KS if method in parted else (None,))
    }
    assert len(found) == len(rows)
    files = draw_experiment(EXPERIMENTS["subcluster"], settings)
    assert {path.name for path in files} == {
        *("subcluster-fig3.png", "subcluster-fig4.png", "subcluster.csv", "subcluster.md")
    }
    assert all(path.stat().st_size > 100 for path in files)
    assert run_experiment(EXPERIMENTS["subcluster"], settings, quiet=True) == rows


@pytest.mark.parametrize("method", sorted(METHODS))
def test_rows_say_what_is_private_and_measure_the_gap(method: str) -> None:
    parts = 3 if method.startswith("sub") else None
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the rows say it; nothing need be said again
        rows = cost_gaps(Named("iris"), method, parts, 0)
    data = Named("iris").dataset()
    assert [row["epsilon"] for row in rows] == list(EPSILONS)
    for row in rows:
        assert row["private"] == ("no" if method in ("kmeans-guarantee", "subcluster") else "yes")
        gap = abs(float(str(row["nicv"])) / data.reference_nicv - 1)
        assert math.isclose(float(str(row["cost_gap"])), gap, rel_tol=1e-9)


def test_raw_columns_keep_their_distances() -> None:
    from sklearn.datasets import load_wine

    X, data = load_wine().data, Raw(Named("wine")).dataset()
    apart = np.linalg.norm(X[:40] - X[40:80], axis=1)
    found = np.linalg.norm(data.values[:40] - data.values[40:80], axis=1)
    np.testing.assert_allclose(found, apart * 2 / np.ptp(X, axis=0).max(), atol=1e-3)
    assert data.name == "wine, raw"
    assert data.n_clusters == 3


def test_the_full_version_is_the_papers() -> None:
    units = EXPERIMENTS["subcluster"].units(Settings(Path("unused"), full=True))
    methods = len(METHODS) - 2 + 2 * len(INTERNAL_KS)
    assert len(units) == methods * (3 * 30 + 10 + 2 * 30)  # wine and wdbc raw as well
    assert len({unit.key for unit in units}) == len(units)
