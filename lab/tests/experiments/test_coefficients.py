"""Intervals of coefficients, table by table: the small version of the experiment, mutants."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression

from cloister.app.release import Release
from cloister.core.errors import PlanError
from cloister.testing import SimulatedNoise, ZeroNoise
from cloister_lab.experiments import coefficients
from cloister_lab.experiments.catalogue import EXPERIMENTS
from cloister_lab.experiments.coefficients import (
    FAMILIES,
    LAWS,
    TRUTHS,
    as_markdown,
    draw,
    exact,
    measure,
    tables,
)
from cloister_lab.experiments.records import load_tidy
from cloister_lab.experiments.run import (
    Settings,
    draw_experiment,
    run_experiment,
)

STATISTICAL = Path(__file__).parents[3] / "tests" / "statistical"


def statistical(name: str) -> ModuleType:
    """Return a module of statistical tests."""
    spec = spec_from_file_location(f"tables_of_{name}", STATISTICAL / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_small_experiment_writes_a_row_for_each_table_and_its_page(tmp_path: Path) -> None:
    rows = run_experiment(
        EXPERIMENTS["coefficients"], Settings(out=tmp_path, repeats=2), quiet=True
    )
    assert len(rows) == 8
    page, table = draw_experiment(EXPERIMENTS["coefficients"], Settings(out=tmp_path))
    assert len(load_tidy(table)) == len(rows)
    text = page.read_text("utf-8")
    assert "`cloister experiments run coefficients`" in text
    assert f"on a {rows[0]['machine']} machine, 2 releases" in text
    for row in rows:
        found: dict[str, Any] = dict(row)
        assert 0 <= found["worst"] <= found["covered"] <= 1
        assert 0 <= found["wrong"] <= found["sure"]
        assert found["width"] > 0
        assert max(found["score"], found["exact_score"]) <= 1
        assert f"| {row['dataset']} | {row['made_of']} | {row['records']:,} x" in text
    assert {(row["method"], row["epsilon"]) for row in rows} == {
        (model, epsilon) for model in ("linear", "logistic") for epsilon in (1, 4)
    }


def test_the_full_experiment_has_every_family_truth_and_law() -> None:
    for model in ("linear", "logistic"):
        kinds = tables(model).values()
        assert {family for family, _, _ in kinds} == set(FAMILIES)
        assert {truth for _, truth, _ in kinds} == set(TRUTHS)
        assert {law for _, _, law in kinds} >= set(LAWS[model])


@pytest.mark.parametrize("model", ["linear", "logistic"])
def test_every_table_is_drawn_the_same_each_time_within_its_bounds(model: str) -> None:
    for name in tables(model):
        schema, records = draw(model, name)
        np.testing.assert_array_equal(records, draw(model, name)[1])
        assert np.abs(records[:, -1]).max() <= schema.grid().one
        if model == "logistic":
            sizes = np.unique(records[:, -1], return_counts=True)[1]
            assert len(sizes) == schema.public[-1].levels
            assert sizes.min() >= 0.02 * len(records)


def test_scikit_learn_is_asked_for_coefficients_in_data_units() -> None:
    schema, records = draw("linear", "gamma 0")
    values = schema.grid().decode(records / schema.grid().one)
    fit = LinearRegression().fit(values[:, :-1], values[:, -1])
    found = exact("linear", schema, records)
    np.testing.assert_allclose(found.coef[0], fit.coef_, rtol=1e-6)
    assert found.score == pytest.approx(fit.score(values[:, :-1], values[:, -1]))


def test_coverage_is_what_the_tests_of_logistic_intervals_find() -> None:
    module = statistical("test_logistic_targets")
    shares = module.covered("skewed", 4.0)
    found = measure(
        "logistic", *module.table("skewed"), 4.0, runs=module.RUNS, noise=SimulatedNoise
    )
    assert found["covered"] == pytest.approx(shares.mean())
    assert found["worst"] == pytest.approx(shares.min())


def test_coverage_is_what_the_tests_of_linear_intervals_find() -> None:
    module = statistical("test_regression_intervals")
    for make in (module.curved, module.rare):
        held, wrong = module.coverage(make, 4.0)
        found: dict[str, Any] = measure(
            "linear", *make(), 4.0, runs=module.LINEAR_RUNS, noise=SimulatedNoise
        )
        assert found["covered"] == pytest.approx(held.mean())
        assert found["worst"] == pytest.approx(held.min())
        assert found["wrong"] / max(found["sure"], 1) == pytest.approx(wrong)


def test_without_noise_scores_are_those_of_scikit_learn() -> None:
    for model in ("linear", "logistic"):
        found: dict[str, Any] = measure(
            model, *draw(model, "categories 0"), 8.0, runs=1, noise=lambda _: ZeroNoise()
        )
        assert found["score"] == pytest.approx(found["exact_score"], abs=0.02)


@pytest.mark.parametrize(("factor", "shift"), [(0.2, 0.0), (1.0, 3.0)])
def test_wrong_intervals_are_caught(
    monkeypatch: pytest.MonkeyPatch, factor: float, shift: float
) -> None:
    def wrong(*args: Any, **options: Any) -> Release:
        result = honest(*args, **options)
        low, high = result.results["coef_low"], result.results["coef_high"]
        half, middle = (high - low) / 2, (high + low) / 2
        middle = middle + shift * half
        ends = {"coef_low": middle - factor * half, "coef_high": middle + factor * half}
        result.results.update(ends)  # type: ignore[attr-defined]  # a dict of a fresh result
        return result

    honest = coefficients.run_job
    table = draw("logistic", "uniform 0")
    before = measure("logistic", *table, 4.0, runs=10, noise=SimulatedNoise)
    monkeypatch.setattr(coefficients, "run_job", wrong)
    after = measure("logistic", *table, 4.0, runs=10, noise=SimulatedNoise)
    assert (before["covered"] or 0) >= 0.9
    assert (after["covered"] or 0) < 0.6


def test_wrong_signs_are_counted_among_intervals_without_0(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = draw("linear", "normal 0")
    mirrored = exact("linear", *table)
    monkeypatch.setattr(
        coefficients,
        "exact",
        lambda *_: coefficients.Exact(-mirrored.coef, mirrored.score, mirrored.loose),
    )
    found = measure("linear", *table, 4.0, runs=2, noise=SimulatedNoise)
    assert (found["sure"] or 0) > 0
    assert found["wrong"] == found["sure"]


def test_an_unknown_table_is_refused() -> None:
    with pytest.raises(PlanError, match="table must be one of"):
        draw("linear", "nowhere")


def test_the_page_counts_what_holds() -> None:
    row = {
        "dataset": "a",
        "method": "linear",
        "made_of": "normal, straight, t3 errors",
        "records": 4000,
        "columns": 4,
        "epsilon": 1.0,
        "runs": 20,
        "covered": 0.95,
        "worst": 0.85,
        "sure": 40,
        "wrong": 1,
        "width": 1.2,
        "exact_score": 0.8,
        "score": 0.79,
        "seconds": 0.1,
        "machine": "toy",
    }
    worse = row | {"dataset": "b", "covered": 0.85, "worst": 0.5, "wrong": 3, "width": 1.4}
    page = as_markdown([row, worse], "the command")
    assert "| linear | 1 | 2 | 0.900 | 1 of 2 | 1 of 2 | 4 of 80 | 1.30 | 0.0100 |" in page
