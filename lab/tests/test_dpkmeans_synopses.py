"""``DPKMeans`` with ``eugkm``, ``hybrid``, ``lshtree``, ``feddp-init`` and ``dpem``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.utils.estimator_checks import check_estimator

from cloister import DPKMeans, Schema
from cloister.cli import main
from cloister.core.errors import PlanError
from cloister.testing import UNMET_CHECKS, ZeroNoiseKMeans
from cloister_lab.experiments.compare import compare
from cloister_lab.experiments.datasets import min_max
from cloister_lab.experiments.records import number
from cloister_lab.experiments.sweep import TASKS as METHODS

ALGORITHMS = ["eugkm", "hybrid", "lshtree", "feddp-init", "dpem"]
every = pytest.mark.parametrize("algorithm", ALGORITHMS)
RNG = np.random.default_rng(0)
X = np.vstack([RNG.normal(c, 0.1, (150, 2)) for c in ((-0.6, -0.6), (0.6, 0.5), (0.6, -0.7))])


def model(cls: Any = DPKMeans, **changes: Any) -> Any:
    options: dict[str, Any] = {"epsilon": 5.0, "bounds": (-1, 1), "nominal_n": 450, **changes}
    return cls(options.pop("n_clusters", 3), **options)


@every
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("cls", [DPKMeans, ZeroNoiseKMeans])
def test_scikit_learns_checks_pass(algorithm: str, cls: Any) -> None:
    # Bounds that fit scikit-learn's tables: some methods look at the box at a fixed fineness.
    estimator = cls(3, epsilon=1e6, bounds=(-10, 10), nominal_n=100, algorithm=algorithm)
    two_noises = {"check_fit_idempotent": "two fits draw two noises"} if cls is DPKMeans else {}
    results = check_estimator(
        estimator, expected_failed_checks=two_noises | UNMET_CHECKS, on_skip=None, on_fail="raise"
    )
    assert sum(result["status"] == "passed" for result in results) >= 35


@every
def test_learned_attributes_have_their_shapes_and_meaning(algorithm: str) -> None:
    fitted = model(algorithm=algorithm).fit(X)
    assert fitted.cluster_centers_.shape == fitted.centers_half_width_.shape == (3, 2)
    assert fitted.cluster_sizes_.shape == fitted.sizes_half_width_.shape == (3,)
    assert np.abs(fitted.cluster_centers_).max() <= 1
    assert len(fitted.history_) == fitted.n_iter_ + 1 == fitted.plan_.rounds + 1
    assert 0.99 * 5.0 < fitted.spent_ <= 5.0
    assert fitted.labels_.shape == (450,)
    assert fitted.plan_.task.name == algorithm


@pytest.mark.parametrize("algorithm", ["eugkm", "lshtree"])
def test_a_grid_too_fine_for_exact_distances_still_gives_the_nearest(algorithm: str) -> None:
    fitted = model(ZeroNoiseKMeans, algorithm=algorithm, frac_bits=24, random_state=0).fit(X)
    distances = fitted.transform(X)
    chosen = np.take_along_axis(distances, fitted.labels_[:, None], axis=1)[:, 0]
    assert (chosen <= distances.min(axis=1) + 2**-20).all()
    assert np.array_equal(fitted.predict(X), fitted.labels_)


@every
def test_clusters_are_found_where_noise_is_small(algorithm: str) -> None:
    fitted = model(ZeroNoiseKMeans, epsilon=1000.0, algorithm=algorithm, random_state=0).fit(X)
    found = fitted.cluster_centers_[np.lexsort(fitted.cluster_centers_.T)]
    assert found.tolist() == pytest.approx(
        np.array([[0.6, -0.7], [-0.6, -0.6], [0.6, 0.5]]), abs=0.1
    )
    assert fitted.cluster_sizes_.sum() == pytest.approx(450, rel=0.05)


@every
def test_silos_give_the_pooled_centres(algorithm: str) -> None:
    options = {"random_state": 0, "algorithm": algorithm}
    pooled = model(ZeroNoiseKMeans, **options).fit(X)
    fitted = model(ZeroNoiseKMeans, **options).fit([X[:100], X[100:101], X[101:]])
    assert np.array_equal(fitted.cluster_centers_, pooled.cluster_centers_)


@every
def test_a_model_survives_its_file(algorithm: str, tmp_path: Path) -> None:
    fitted = model(algorithm=algorithm).fit(X)
    fitted.save(tmp_path / "m.json")
    loaded = DPKMeans.load(tmp_path / "m.json")
    assert np.array_equal(loaded.cluster_centers_, fitted.cluster_centers_)
    assert np.array_equal(loaded.predict(X), fitted.predict(X))
    clone(loaded).fit(X)  # its parameters are parameters


@every
def test_without_nominal_n_two_percent_buy_a_count(algorithm: str) -> None:
    fitted = model(nominal_n=None, algorithm=algorithm).fit(X)
    assert 4.9 < fitted.spent_ <= 5.0
    assert fitted.plan_.budget.epsilon < 4.97


@every
def test_the_number_of_rows_reaches_no_public_number(algorithm: str) -> None:
    plans = set()
    for rows in (449, 450):
        fitted = model(random_state=0, algorithm=algorithm).fit(X[:rows])
        plans.add(json.dumps({**fitted.plan_.to_dict(), "run_id": ""}, sort_keys=True))
    assert len(plans) == 1


@pytest.mark.parametrize("rows", [0, 1])
@every
def test_hardly_any_records_are_fitted_in_silos(algorithm: str, rows: int) -> None:
    fitted = model(algorithm=algorithm).fit([X[:rows], X[:0]])
    assert np.isfinite(fitted.cluster_centers_).all()


@every
def test_what_a_method_does_not_know_is_refused(algorithm: str) -> None:
    with pytest.raises(PlanError, match="it has no option 'alpha'"):
        model(algorithm=algorithm, alpha=0.5).fit(X)
    if algorithm != "dpem":
        with pytest.raises(PlanError, match="rounds"):
            model(algorithm=algorithm, rounds=4).fit(X)


def test_a_grid_over_many_columns_is_refused_before_anything_is_spent() -> None:
    wide = np.zeros((10, 20))
    for nominal_n in (100, None):
        with pytest.raises(PlanError, match="20 columns"):
            model(algorithm="eugkm", nominal_n=nominal_n).fit(wide)


# --- Command line and experiments -----------------------------------------------------------------


@every
def test_the_command_line_runs_it(algorithm: str, tmp_path: Path) -> None:
    columns = [{"name": name, "type": "number", "min": -1, "max": 1} for name in "ab"]
    schema = Schema(dataset="ward", unit="row", columns=columns)
    (tmp_path / "ward.toml").write_text(schema.to_toml())
    pd.DataFrame(X[::2], columns=["a", "b"]).to_csv(tmp_path / "north.csv", index=False)
    pd.DataFrame(X[1::2], columns=["a", "b"]).to_csv(tmp_path / "south.csv", index=False)
    words = [str(tmp_path / "north.csv"), str(tmp_path / "south.csv"), "--k", "3"]
    words += ["--schema", str(tmp_path / "ward.toml"), "--epsilon", "2", "--nominal-n", "450"]
    words += ["--algorithm", algorithm, "--out", str(tmp_path / "out"), "--quiet"]
    words += ["--ledger", str(tmp_path / "ledger.db"), "--cap-epsilon", "2"]
    assert main(["cluster", *words]) == 0
    assert any((tmp_path / "out").iterdir())
    assert main(["cluster", *words, "--keep-empty"]) != 0


def test_comparisons_know_them(tmp_path: Path) -> None:
    data = min_max(X, "three", 3)
    rows = compare([data], ALGORITHMS, [20.0], tmp_path / "runs.csv", repeats=4)
    assert {row["method"] for row in rows} == set(ALGORITHMS) <= set(METHODS)
    assert all(row["noise"] == "operating system" for row in rows)
    # dpem ends in a poor optimum from some of the public starts
    assert all(number(row, "nicv") < 0.3 for row in rows if row["method"] != "dpem")
    assert min(number(row, "nicv") for row in rows if row["method"] == "dpem") < 0.3
