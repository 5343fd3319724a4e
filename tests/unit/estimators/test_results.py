"""What a notebook sees of a release: its numbers, their noise, its cost, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

import cloister
from cloister import DPKMeans, DPLogisticRegression, DPNaiveBayes, DPSiloEnsemble, DPStandardScaler
from cloister.core.errors import PlanError
from cloister.tasks.clustering.clusters import all_at_once

Y = np.repeat([0, 1], 500)
X = np.random.default_rng(0).normal(4 * Y[:, None], 1, (1000, 2))
AGREED: dict[str, Any] = {"epsilon": 2.0, "bounds": (-5, 10), "nominal_n": 1000}
TABLE = np.repeat([[1, 1, 0], [0, 0, 1]], 500, axis=0)  # what goes together always does
SHOWN: dict[str, Callable[[], Any]] = {
    "kmeans": lambda: DPKMeans(2, **AGREED).fit(X),
    "bayes": lambda: DPNaiveBayes(**AGREED, classes=[0, 1]).fit(X, Y),
    "logistic": lambda: DPLogisticRegression(**AGREED, classes=[0, 1]).fit(X, Y),
    "scaler": lambda: DPStandardScaler(**AGREED).fit(X),
    "measures": lambda: cloister.evaluate(released("bayes"), X, Y, epsilon=2.0, nominal_n=1000),
    "rules": lambda: cloister.mine_rules(TABLE, epsilon=2.0, nominal_n=1000),
    "quantiles": lambda: cloister.dp_quantiles(X, **AGREED),
}


@cache
def released(name: str) -> Any:
    """Return a release, made when a test first needs it."""
    return SHOWN[name]()


@pytest.mark.parametrize("name", SHOWN)
def test_whatever_was_released_shows_its_numbers_and_its_cost(name: str, tmp_path: Path) -> None:
    shown = released(name)
    html = shown._repr_html_()
    assert html == shown._repr_mimebundle_()["text/html"]
    assert "epsilon 2" in html
    assert "unit of privacy one row" in html
    assert "<td>" in html
    frame = shown.to_frame()
    assert len(frame)
    shown.report(tmp_path / "report.html")
    assert "epsilon" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_frame_has_the_intervals_of_the_model_once() -> None:
    frame = released("kmeans").to_frame()
    assert list(frame.columns) == ["value", "low", "high"]
    assert set(frame.index.get_level_values("table")) == {"Centres"}
    cell = frame.loc[("Centres", "cluster 1", "x0")]
    assert cell.value == released("kmeans").cluster_centers_[1, 0]
    low, high = all_at_once(
        released("kmeans").cluster_centers_,
        released("kmeans").centers_low_,
        released("kmeans").centers_high_,
    )
    assert (cell.low, cell.high) == (low[1, 0], high[1, 0])
    size = frame.loc[("Centres", "cluster 0", "noisy size")]
    assert size.high - size.value == pytest.approx(released("kmeans").sizes_half_width_[0])


def test_a_frame_has_population_intervals_where_there_are_any() -> None:
    frame = released("scaler").to_frame()
    means = frame.xs("mean", level="column")
    assert np.array_equal(means["value"], released("scaler").mean_)
    population = means[["population_low", "population_high"]].to_numpy()
    assert np.array_equal(population, released("scaler").mean_population_interval_)


def test_a_plot_returns_axes_that_draw_the_display_of_a_title() -> None:
    axes = released("kmeans").plot("Noisy sizes")
    assert axes.get_title() == "Noisy sizes"
    assert [bar.get_width() for bar in axes.patches] == pytest.approx(
        released("kmeans").cluster_sizes_
    )
    assert released("kmeans").plot().get_title() == "Centres at a glance"
    with pytest.raises(PlanError, match=r"title must be one of .*'Noisy sizes'"):
        released("kmeans").plot("sizes")
    with pytest.raises(PlanError, match="no picture; to_frame has its numbers"):
        released("scaler").plot()


def test_before_the_fit_there_is_nothing_to_show_but_parameters(tmp_path: Path) -> None:
    model = DPKMeans(2, **AGREED)
    assert "n_clusters" in model._repr_mimebundle_()["text/html"]
    for look in (model.to_frame, model.plot, lambda: model.report(tmp_path / "r.html")):
        with pytest.raises(NotFittedError):
            look()


def test_an_ensemble_shows_each_model_and_what_they_cost_together() -> None:
    base = DPNaiveBayes(**AGREED, classes=[0, 1])
    unfitted = DPSiloEnsemble(base)
    assert "text/html" in unfitted._repr_mimebundle_()
    html = unfitted.fit([X, X], [Y, Y])._repr_mimebundle_()["text/html"]
    assert "2 silos released one model each" in html
    assert html.count("<strong>DPNaiveBayes") == 2


def test_a_plan_shows_what_is_fixed_before_anything_is_spent() -> None:
    html = released("kmeans").plan_._repr_html_()
    assert "epsilon 2" in html
    assert "unit of privacy one row" in html
    assert "<td>1,000</td>" in html


def test_a_choice_of_k_shows_its_model() -> None:
    found = cloister.select_k(X, range(1, 4), **AGREED)
    assert found._repr_html_() == found.model._repr_html_()
    assert "<strong>DPKMeans" in found._repr_html_()
