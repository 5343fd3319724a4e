"""Measures of a clustering: worked by hand, then against scikit-learn."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.metrics
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from sklearn.cluster import KMeans

from cloister.core.errors import DataError
from cloister_lab import metrics

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"

LINE = [[0.0], [2.0], [10.0], [14.0]]  # two pairs: means 1 and 12, mean of all 6.5
HALVES = [0, 0, 1, 1]

finite = st.floats(-100, 100, width=32)


def tables(min_rows: int = 1, columns: int = 3) -> st.SearchStrategy[NDArray[np.float64]]:
    shapes = st.tuples(st.integers(min_rows, 12), st.just(columns))
    return shapes.flatmap(lambda shape: arrays(np.float64, shape, elements=finite))


def blobs(n: int = 200, d: int = 3, k: int = 4) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    generator = np.random.default_rng(n * d * k)
    labels = np.arange(n) % k
    return generator.normal(size=(n, d)) + 3 * generator.normal(size=(k, d))[labels], labels


def test_nicv_of_two_pairs_by_hand() -> None:
    # squared distances 1, 1, 4, 4
    assert metrics.nicv(LINE, [[1.0], [12.0]]) == 2.5


def test_nicv_counts_every_point_with_its_nearest_centre() -> None:
    assert metrics.nicv([[0.0], [100.0]], [[0.0]]) == 5000
    assert metrics.nicv([[0.0], [100.0]], [[0.0], [100.0], [50.0]]) == 0


@given(X=tables(), centres=tables())
def test_nicv_equals_the_least_over_all_centres(
    X: NDArray[np.float64], centres: NDArray[np.float64]
) -> None:
    whole = ((X[:, None] - centres) ** 2).sum(axis=2).min(axis=1).mean()
    assert metrics.nicv(X, centres) == pytest.approx(whole, rel=1e-9, abs=1e-9)


def test_nicv_is_inertia_over_n() -> None:
    X, _ = blobs(500, 5, 4)
    fitted = KMeans(4, n_init=1, random_state=0).fit(X)
    assert metrics.nicv(X, fitted.cluster_centers_) == pytest.approx(fitted.inertia_ / len(X))


def test_nicv_keeps_its_digits_far_from_the_origin() -> None:
    X, _ = blobs(300, 2, 3)
    centres = X[:3]
    far = 2.0**30
    X, centres = (X + far) - far, (centres + far) - far  # what float64 can hold out there
    moved = metrics.nicv(X + far, centres + far)
    assert moved == pytest.approx(metrics.nicv(X, centres), rel=1e-12)


@pytest.mark.parametrize("chunk", [1, 7, 50])
def test_metrics_do_not_depend_on_the_chunk(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    X, labels = blobs(60, 2, 3)

    def all_of_them() -> list[float]:
        far = np.vstack([X[:3], [[1e6, 1e6]]])
        return [metrics.nicv(X, far), metrics.empty_clusters(X, far), metrics.dunn(X, labels)]

    whole = all_of_them()
    monkeypatch.setattr(metrics, "_CHUNK_VALUES", chunk)
    assert all_of_them() == pytest.approx(whole, rel=1e-12)


def test_nicv_area_is_the_trapezoid_by_hand() -> None:
    assert metrics.nicv_area([0.1, 0.5, 1.0], [3.0, 1.0, 2.0]) == pytest.approx(0.8 + 0.75)


@pytest.mark.parametrize(
    ("epsilons", "values"),
    [([1.0], [1.0]), ([1, 2], [1]), ([2, 1], [1, 1]), ([1, 1], [1, 1]), ([1, 2], [1, math.nan])],
)
def test_nicv_area_refuses_what_is_no_curve(epsilons: list[float], values: list[float]) -> None:
    with pytest.raises(DataError, match="epsilons"):
        metrics.nicv_area(epsilons, values)


def test_centroid_mse_of_a_shift_by_three_is_nine() -> None:
    """D15: the published code gives the distance, 3."""
    assert metrics.centroid_mse([[0.0], [100.0]], [[103.0], [3.0]]) == 9


def test_centroid_mse_matches_on_squared_distances() -> None:
    """D15: in distance the crossed pairs are nearer (0 + 3.95 < 2 + 1.99), in squares they lose."""
    a, b = [[0.0, 0.0], [-1.9, 0.6]], [[2.0, 0.0], [0.0, 0.0]]
    assert metrics.centroid_mse(a, b) == pytest.approx((4 + 3.97) / 2)


@given(a=tables(min_rows=4), data=st.data())
def test_centroid_mse_is_the_best_of_all_matchings(
    a: NDArray[np.float64], data: st.DataObject
) -> None:
    a = a[:4]
    b = data.draw(arrays(np.float64, a.shape, elements=finite))
    best = min(
        ((a - b[list(order)]) ** 2).sum(axis=1).mean() for order in itertools.permutations(range(4))
    )
    assert metrics.centroid_mse(a, b) == pytest.approx(best, rel=1e-9, abs=1e-9)
    assert metrics.centroid_mse(b, a) == pytest.approx(best, rel=1e-9, abs=1e-9)
    assert metrics.centroid_mse(a, a[::-1]) == 0


def test_centroid_mse_refuses_different_numbers_of_centres() -> None:
    with pytest.raises(DataError, match="as many centres, got 1 and 2"):
        metrics.centroid_mse([[0.0]], [[0.0], [1.0]])


def test_empty_clusters_by_hand() -> None:
    assert metrics.empty_clusters(LINE, [[1.0], [12.0]]) == 0
    assert metrics.empty_clusters(LINE, [[1.0], [12.0], [-50.0], [99.0]]) == 2
    assert metrics.empty_clusters(LINE, [[1.0], [1.0]]) == 1
    assert metrics.empty_clusters([[5.0]], [[1.0], [2.0], [3.0]]) == 2


def test_cost_gap_is_relative_to_the_reference() -> None:
    assert metrics.cost_gap(3.0, 2.0) == 0.5
    assert metrics.cost_gap(1.0, 2.0) == 0.5
    assert metrics.cost_gap(1.0, 0.0) == math.inf
    assert metrics.cost_gap(0.0, 0.0) == 0.0
    for wrong in ((-1.0, 1.0), (1.0, -1.0), (math.nan, 1.0), (1.0, math.inf)):
        with pytest.raises(DataError, match="losses"):
            metrics.cost_gap(*wrong)


def test_measures_of_two_pairs_by_hand() -> None:
    # spread of the pairs 1 and 2, means 11 apart
    assert metrics.davies_bouldin(LINE, HALVES) == pytest.approx(3 / 11)
    assert metrics.dunn(LINE, HALVES) == 8 / 4
    assert metrics.bcss(LINE, HALVES) == 2 * 5.5**2 + 2 * 5.5**2
    assert metrics.calinski_harabasz(LINE, HALVES) == (121 / 1) / (10 / 2)
    # b - a over b: means to the other pair 12, 10, 9, 13
    by_hand = (10 / 12 + 8 / 10 + 5 / 9 + 9 / 13) / 4
    assert metrics.silhouette(LINE, HALVES) == pytest.approx(by_hand)


ORACLES: list[tuple[Callable[..., float], Callable[..., float]]] = [
    (metrics.silhouette, sklearn.metrics.silhouette_score),
    (metrics.davies_bouldin, sklearn.metrics.davies_bouldin_score),
    (metrics.calinski_harabasz, sklearn.metrics.calinski_harabasz_score),
]


@pytest.mark.parametrize(("ours", "theirs"), ORACLES)
@pytest.mark.parametrize(("n", "d", "k"), [(30, 1, 2), (90, 3, 4), (50, 8, 7)])
def test_measures_agree_with_scikit_learn(
    ours: Callable[..., float], theirs: Callable[..., float], n: int, d: int, k: int
) -> None:
    X, labels = blobs(n, d, k)
    assert ours(X, labels) == pytest.approx(theirs(X, labels), rel=1e-10)


@settings(deadline=None)
@given(X=tables(min_rows=4), data=st.data())
def test_total_sum_of_squares_splits_into_within_and_between(
    X: NDArray[np.float64], data: st.DataObject
) -> None:
    labels = np.array(data.draw(st.lists(st.integers(0, 3), min_size=len(X), max_size=len(X))))
    within = sum(
        float(((X[labels == j] - X[labels == j].mean(axis=0)) ** 2).sum()) for j in set(labels)
    )
    total = float(((X - X.mean(axis=0)) ** 2).sum())
    assert metrics.bcss(X, labels) + within == pytest.approx(total, rel=1e-9, abs=1e-6)


@given(X=tables(min_rows=4), data=st.data())
def test_dunn_is_the_ratio_over_all_pairs(X: NDArray[np.float64], data: st.DataObject) -> None:
    labels = data.draw(st.lists(st.integers(0, 1), min_size=len(X), max_size=len(X)))
    pairs = list(itertools.combinations(range(len(X)), 2))
    apart = [math.dist(X[i], X[j]) for i, j in pairs if labels[i] != labels[j]]
    inside = [math.dist(X[i], X[j]) for i, j in pairs if labels[i] == labels[j]]
    found = metrics.dunn(X, labels)
    if not apart or min(apart) == 0:
        assert found == 0
    elif not max(inside, default=0.0):
        assert found == math.inf
    else:
        assert found == pytest.approx(min(apart) / max(inside))


@given(X=tables(min_rows=4), shift=st.integers(1, 9), data=st.data())
def test_measures_do_not_depend_on_the_names_of_labels(
    X: NDArray[np.float64], shift: int, data: st.DataObject
) -> None:
    labels = np.array(data.draw(st.lists(st.integers(0, 2), min_size=len(X), max_size=len(X))))
    for measure in (metrics.dunn, metrics.bcss):
        assert measure(X, -3 * labels + shift) == pytest.approx(measure(X, labels), rel=1e-9)


def test_one_cluster_gets_the_worst_value_of_every_measure() -> None:
    one = [7, 7, 7, 7]
    assert metrics.silhouette(LINE, one) == -1
    assert metrics.davies_bouldin(LINE, one) == math.inf
    assert metrics.calinski_harabasz(LINE, one) == 0
    assert metrics.dunn(LINE, one) == 0
    assert metrics.bcss(LINE, one) == 0
    assert metrics.silhouette([[1.0]], [0]) == -1


def test_every_point_its_own_cluster_is_defined() -> None:
    own = [0, 1, 2, 3]
    assert metrics.silhouette(LINE, own) == 0
    assert metrics.davies_bouldin(LINE, own) == 0
    assert metrics.calinski_harabasz(LINE, own) == 0
    assert metrics.dunn(LINE, own) == math.inf


def test_duplicated_points_and_constant_columns_are_defined() -> None:
    same = np.ones((4, 2))
    assert metrics.davies_bouldin(same, HALVES) == math.inf  # two clusters, one mean
    assert metrics.calinski_harabasz(same, HALVES) == 0
    assert metrics.dunn(same, HALVES) == 0
    assert metrics.silhouette(same, HALVES) == 0
    tight = np.column_stack([np.ones(4), [0.0, 0.0, 1.0, 1.0]])
    assert metrics.davies_bouldin(tight, HALVES) == 0
    assert metrics.calinski_harabasz(tight, HALVES) == math.inf
    assert metrics.dunn(tight, HALVES) == math.inf
    assert metrics.silhouette(tight, HALVES) == 1


def test_silhouette_sample_is_named_by_the_public_seed() -> None:
    X, labels = blobs(400, 2, 3)
    first = metrics.silhouette(X, labels, sample_size=50, public_seed=1)
    assert first == metrics.silhouette(X, labels, sample_size=50, public_seed=1)
    assert first != metrics.silhouette(X, labels, sample_size=50, public_seed=2)
    whole = metrics.silhouette(X, labels)
    assert metrics.silhouette(X, labels, sample_size=400) == whole
    assert metrics.silhouette(X, labels, sample_size=9999) == whole
    assert metrics.silhouette(X, labels, sample_size=1) == -1
    with pytest.raises(DataError, match="sample_size"):
        metrics.silhouette(X, labels, sample_size=0)


@pytest.mark.parametrize(
    ("X", "centres"),
    [
        ([1.0, 2.0], [[1.0]]),
        ([[1.0]], [1.0]),
        ([], [[1.0]]),
        (np.empty((0, 1)), [[1.0]]),
        ([[1.0]], np.empty((0, 1))),
        ([[math.nan]], [[1.0]]),
        ([[1.0]], [[math.inf]]),
        ([[1.0, 2.0]], [[1.0]]),
        ([["a"]], [[1.0]]),
        ([[1.0], [1.0, 2.0]], [[1.0]]),
    ],
)
def test_unusable_tables_are_a_data_error(X: Any, centres: Any) -> None:
    for measure in (metrics.nicv, metrics.empty_clusters, metrics.centroid_mse):
        with pytest.raises(DataError):
            measure(X, centres)


def test_labels_that_do_not_fit_are_a_data_error() -> None:
    for measure in (
        metrics.silhouette,
        metrics.davies_bouldin,
        metrics.calinski_harabasz,
        metrics.dunn,
        metrics.bcss,
    ):
        with pytest.raises(DataError, match="labels"):
            measure(LINE, [0, 1])


def test_every_public_measure_says_it_is_not_a_release() -> None:
    names = [name for name in vars(metrics) if getattr(vars(metrics)[name], "__doc__", None)]
    own = [
        vars(metrics)[name]
        for name in names
        if not name.startswith("_")
        and getattr(vars(metrics)[name], "__module__", "") == metrics.__name__
    ]
    assert len(own) == 10
    assert all("not a release" in measure.__doc__ for measure in own)


def test_measures_of_iris_agree_with_scikit_learn() -> None:
    path = SHARED / "iris.csv.gz"
    if not path.exists():
        pytest.skip("the public benchmark data are not beside this checkout")
    X = np.loadtxt(path, delimiter=",", skiprows=1)
    fitted = KMeans(3, n_init=5, random_state=0).fit(X)
    assert metrics.nicv(X, fitted.cluster_centers_) == pytest.approx(fitted.inertia_ / len(X))
    for ours, theirs in ORACLES:
        assert ours(X, fitted.labels_) == pytest.approx(theirs(X, fitted.labels_))
