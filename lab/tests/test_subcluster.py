"""``DPKMeans`` and ``cloister compare`` with ``kmeans-guarantee-dp`` and ``subcluster-dp``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.utils.estimator_checks import check_estimator

from cloister import DPKMeans
from cloister.core.errors import PlanError
from cloister.testing import UNMET_CHECKS
from cloister_lab.experiments.compare import compare
from cloister_lab.experiments.datasets import min_max
from cloister_lab.experiments.records import number

ALGORITHMS = pytest.mark.parametrize("algorithm", ["kmeans-guarantee-dp", "subcluster-dp"])
RNG = np.random.default_rng(0)
X = np.vstack([RNG.normal(c, 0.1, (150, 2)) for c in ((-0.6, -0.6), (0.6, 0.5), (0.6, -0.7))])


def model(algorithm: str, **changes: Any) -> DPKMeans:
    options: dict[str, Any] = {"epsilon": 5.0, "bounds": (-1, 1), "nominal_n": 450, **changes}
    return DPKMeans(3, algorithm=algorithm, random_state=0, **options)


@pytest.mark.filterwarnings("ignore")
@ALGORITHMS
def test_scikit_learns_checks_pass_but_for_the_one_that_compares_two_fits(algorithm: str) -> None:
    results = check_estimator(
        DPKMeans(3, epsilon=1e6, bounds=(-100, 100), nominal_n=100, algorithm=algorithm),
        expected_failed_checks={"check_fit_idempotent": "two noises", **UNMET_CHECKS},
        on_skip=None,
        on_fail="raise",
    )
    assert sum(result["status"] == "passed" for result in results) >= 35


@ALGORITHMS
def test_it_finds_clusters_and_spends_its_budget(algorithm: str) -> None:
    fitted = model(algorithm, epsilon=100.0, delta=1e-6).fit(X)
    assert 99 < fitted.spent_ <= 100
    assert fitted.labels_.shape == (450,)
    assert -fitted.score(X) / 450 < 0.2  # 0.02 of the groups themselves, 0.7 of one centre
    assert (fitted.centers_low_ <= fitted.centers_high_).all()


@ALGORITHMS
def test_a_model_survives_its_file(algorithm: str, tmp_path: Path) -> None:
    fitted = model(algorithm, relocate_empty=False).fit(X)
    fitted.save(tmp_path / "m.json")
    loaded = DPKMeans.load(tmp_path / "m.json")
    assert np.array_equal(loaded.cluster_centers_, fitted.cluster_centers_)
    assert loaded.algorithm == algorithm
    assert loaded.rounds == fitted.n_iter_
    assert loaded.plan_.digest == fitted.plan_.digest
    assert loaded.result_.history[1].keys() == fitted.result_.history[1].keys()
    loaded.fit(X)


@ALGORITHMS
def test_several_silos_and_a_paid_count(algorithm: str) -> None:
    fitted = model(algorithm, nominal_n=None).fit([X[:200], X[200:]])
    assert fitted.cluster_centers_.shape == (3, 2)
    assert fitted.plan_.profile == "group"
    assert 4.9 < fitted.spent_ <= 5.0


def test_subclusters_rounds_are_even() -> None:
    assert model("subcluster-dp", rounds=6).fit(X).n_iter_ == 6
    with pytest.raises(PlanError, match="even"):
        model("subcluster-dp", rounds=3).fit(X)


def test_they_can_be_compared(tmp_path: Path) -> None:
    rows = compare(
        [min_max(X, "groups", 3)],
        ["kmeans-guarantee-dp", "subcluster-dp"],
        [1.0],
        tmp_path / "runs.csv",
        repeats=1,
    )
    assert [row["method"] for row in rows] == ["kmeans-guarantee-dp", "subcluster-dp"]
    assert all(row["noise"] == "operating system" for row in rows)
    assert all(math.isfinite(number(row, "cost_gap")) for row in rows)
