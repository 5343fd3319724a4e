"""What evaluation makes of a model that returns no numbers, and of the places of centres."""

from __future__ import annotations

from math import sqrt
from types import SimpleNamespace

import numpy as np
import pytest

from cloister.core.display import Estimate
from cloister.tasks import scores
from cloister.tasks.evaluation.classification import Evaluation
from cloister.tasks.evaluation.cluster_quality import ClusterQuality
from cloister.tasks.scores import regression_measures

ONE = 1 << 16


@pytest.mark.parametrize("k", [2, 3, 5])
def test_a_probability_that_is_no_number_counts_as_that_of_even_classes(k: int) -> None:
    """So it may be the largest."""
    rest = np.full(k - 1, 0.9 / k)

    def answers(first: float) -> tuple[list[list[int]], list[int]]:
        model = SimpleNamespace(probabilities=lambda *_: np.array([[first, *rest]]))
        heads = 1 if k == 2 else k
        task = SimpleNamespace(
            model=model, classes=tuple("abcde"[:k]), heads=heads, n_bins=50, _arrays={}
        )
        bins, predicted = Evaluation._of_model(task, np.zeros((1, 1), np.int32))  # type: ignore[arg-type]
        return bins.tolist(), predicted.tolist()

    assert answers(np.nan) == answers(1 / k)
    assert answers(np.nan)[1] == [0]


def test_the_farthest_place_is_the_corner_opposite_to_the_outermost_centre() -> None:
    task = ClusterQuality(n_features=2, centres=((0, 0), (ONE, -ONE)))
    assert task._farthest == pytest.approx(2 * sqrt(2))
    inner = ClusterQuality(n_features=2, centres=((0, 0), (0, -ONE // 2)))
    assert inner._farthest == pytest.approx(sqrt(1 + 1.5**2))


def test_a_rate_of_a_roc_curve_is_inside_its_intervals() -> None:
    """A negative noisy count makes the raw rate fall by far more than its interval is wide."""
    others, members = np.full(6, 20.0), np.array([30.0, 20.0, -40.0, 20.0, 50.0, 60.0])
    noise = 4 * np.eye(6)
    _, rates = scores.roc_curve(scores.ScoreHistogram(others, members, noise, noise))
    assert rates.population is not None
    assert (np.diff(rates.values) >= 0).all()
    for low, high in ((rates.low, rates.high), rates.population):
        assert (low <= rates.values).all()
        assert (rates.values <= high).all()


def test_a_root_is_not_below_the_mean_of_absolute_errors() -> None:
    """Noise may draw the sum of squares below what the absolute ones allow."""
    n, absolute, squared = 2500.0, 0.05, 0.001
    sums = np.array([n, 0.0, n * (2 * absolute - 1), n * (2 * squared - 1), 0.0, -n / 2])
    found = regression_measures(sums, 50.0**2, bound=90.0, half_range=45.0)
    mae, rmse = found["mae"], found["rmse"]
    assert float(mae.values) == pytest.approx(90 * absolute)
    assert rmse.low < rmse.values < rmse.high
    assert rmse.values >= mae.values


def test_a_mean_of_measures_near_an_end_is_covered() -> None:
    """The cut of one value at 1 is an error of one sign, which others do not average out."""
    truth, noise = np.array([0.99, 0.99, 1.0]), 0.02
    values = truth + noise * np.random.default_rng(0).normal(size=(4000, 3))
    ends = np.clip([values, values - 1.96 * noise, values + 1.96 * noise], 0.0, 1.0)
    found = scores.mean_of(Estimate(*ends))
    held = (found.low <= truth.mean()) & (truth.mean() <= found.high)
    assert held.mean() > 0.94
