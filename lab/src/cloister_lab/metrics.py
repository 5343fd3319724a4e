"""Measures of a clustering, computed exactly on data.

Nothing here is private: each number is a function of the records without any noise. Use them to
study methods on public data or inside one silo; none of them is a release.

Throughout, ``X`` is a table of shape (n_samples, n_features), ``centres`` one of shape (n_clusters,
n_features) in the same units, and ``labels`` a list of length n_samples. A table that is empty, not
finite or of other columns, and labels that do not fit, are a `DataError`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cloister.core.errors import DataError
from cloister.core.randomness import public_generator
from cloister_lab.lloyd import nearest

_Floats = NDArray[np.float64]
_CHUNK_VALUES = 1 << 20  # distances held at a time


def nicv(X: ArrayLike, centres: ArrayLike) -> float:
    """Return the normalised intra-cluster variance; exact on data, not a release.

    It is the sum over all points of the squared distance to the nearest centre, over n_samples.
    """
    X, centres = _tables(X, centres)
    total = sum(
        float(((X[rows] - centres[labels]) ** 2).sum()) for rows, labels in _nearest(X, centres)
    )
    return total / len(X)


def nicv_area(epsilons: ArrayLike, values: ArrayLike) -> float:
    """Return the area under NICV over increasing epsilon by the trapezoid rule; not a release."""
    x, y = np.asarray(epsilons, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or x.shape != y.shape or len(x) < 2:
        raise DataError(
            f"epsilons and values must be two lists of one length >= 2, got shapes {x.shape} "
            f"and {y.shape}."
        )
    if not (np.isfinite(x).all() and np.isfinite(y).all() and (np.diff(x) > 0).all()):
        raise DataError("epsilons must increase and all values be finite; sort and clean them.")
    return float(np.trapezoid(y, x))


def centroid_mse(a: ArrayLike, b: ArrayLike) -> float:
    """Return the mean squared distance between matched centres; not a release.

    It is the mean over pairs of the squared Euclidean distance, under the one-to-one matching of
    two tables of centres that makes it least.
    """
    from scipy.optimize import linear_sum_assignment
    from scipy.spatial.distance import cdist

    a, b = _tables(a, b)
    if len(a) != len(b):
        raise DataError(f"both sets must have as many centres, got {len(a)} and {len(b)}.")
    cost = cdist(a, b, "sqeuclidean")
    return float(cost[linear_sum_assignment(cost)].mean())


def empty_clusters(X: ArrayLike, centres: ArrayLike) -> int:
    """Count centres that are nearest to no point; exact on data, not a release.

    A tie goes to the first centre, so of two equal centres one is empty.
    """
    X, centres = _tables(X, centres)
    nearest = [labels for _, labels in _nearest(X, centres)]
    return len(centres) - len(np.unique(np.concatenate(nearest)))


def cost_gap(loss: float, reference_loss: float) -> float:
    """Return ``|loss - reference_loss| / reference_loss``; not a release.

    The losses are sums of squares, for example NICV with and without noise. A reference of 0 gives
    infinity, or 0 if both are 0.
    """
    if not (
        math.isfinite(loss) and math.isfinite(reference_loss) and min(loss, reference_loss) >= 0
    ):
        raise DataError("losses must be finite and at least 0; a loss is a sum of squares.")
    gap = abs(loss - reference_loss)
    if reference_loss == 0:
        return math.inf if gap else 0.0
    return float(gap / reference_loss)


def silhouette(
    X: ArrayLike, labels: ArrayLike, sample_size: int | None = None, public_seed: int = 0
) -> float:
    """Return the mean silhouette coefficient; exact on data, not a release.

    It is -1 for one cluster, and 0 where every point is its own cluster. The cost grows with the
    square of the points, or of a random sample of them, which the public seed names.
    """
    X, codes, _ = _labelled(X, labels)
    if sample_size is not None and sample_size < 1:
        raise DataError(f"sample_size must be at least 1, got {sample_size}.")
    if sample_size is not None and sample_size < len(X):
        generator = public_generator(public_seed, "silhouette")
        chosen = generator.choice(len(X), size=sample_size, replace=False)
        X, codes = X[chosen], codes[chosen]
    n_labels = len(np.unique(codes))
    if n_labels == 1:
        return -1.0
    if n_labels == len(X):
        return 0.0
    from sklearn.metrics import silhouette_score

    return float(silhouette_score(X, codes))


def davies_bouldin(X: ArrayLike, labels: ArrayLike) -> float:
    """Return scikit-learn's Davies-Bouldin index, less is better; exact on data, not a release.

    Infinity for one cluster, or where two clusters have the same mean; 0 where every point is its
    own cluster.
    """
    from sklearn.metrics import davies_bouldin_score

    X, codes, means = _labelled(X, labels)
    if len(np.unique(means, axis=0)) < max(len(means), 2):
        return math.inf
    return 0.0 if len(means) == len(X) else float(davies_bouldin_score(X, codes))


def calinski_harabasz(X: ArrayLike, labels: ArrayLike) -> float:
    """Return scikit-learn's variance ratio, more is better; exact on data, not a release.

    0 where it says nothing (one cluster, every point its own cluster, all points equal), infinity
    for clusters without spread.
    """
    from sklearn.metrics import calinski_harabasz_score

    X, codes, means = _labelled(X, labels)
    if len(means) in (1, len(X)) or _between(X, codes, means) == 0:
        return 0.0
    if np.array_equal(X, means[codes]):
        return math.inf
    return float(calinski_harabasz_score(X, codes))


def dunn(X: ArrayLike, labels: ArrayLike) -> float:
    """Return the Dunn index, more is better; exact on data, not a release.

    It is the least distance between points of two clusters over the largest distance within one; 0
    for one cluster, infinity for separate clusters without spread. Time grows with the square of
    n_samples, memory does not.
    """
    from scipy.spatial.distance import cdist

    X, codes, means = _labelled(X, labels)
    if len(means) == 1:
        return 0.0
    separation, diameter = math.inf, 0.0
    for rows in _slices(len(X), len(X)):
        distance = cdist(X[rows], X)
        same = codes[rows, None] == codes
        diameter = max(diameter, float(distance.max(where=same, initial=0.0)))
        separation = min(separation, float(distance.min(where=~same, initial=math.inf)))
    if separation == 0:
        return 0.0
    return math.inf if diameter == 0 else separation / diameter


def bcss(X: ArrayLike, labels: ArrayLike) -> float:
    """Return the between-cluster sum of squares; exact on data, not a release.

    It is the sum over clusters of size times squared distance from the cluster's mean to that of X.
    """
    return _between(*_labelled(X, labels))


def _between(X: _Floats, codes: NDArray[np.intp], means: _Floats) -> float:
    """Return the between-cluster sum of squares."""
    return float(np.bincount(codes) @ ((means - X.mean(axis=0)) ** 2).sum(axis=1))


def _nearest(X: _Floats, centres: _Floats) -> Iterator[tuple[slice, NDArray[np.int64]]]:
    """Yield slices of rows with the index of their nearest centre."""
    for rows in _slices(len(X), max(centres.shape)):
        yield rows, nearest(X[rows], centres)


def _slices(n: int, width: int) -> Iterator[slice]:
    """Cut n rows so that a table of `width` columns stays small."""
    rows = max(1, _CHUNK_VALUES // width)
    return (slice(start, start + rows) for start in range(0, n, rows))


def _table(values: ArrayLike, name: str) -> _Floats:
    """Check a table of numbers."""
    try:
        table = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise DataError(f"{name} must be a table of numbers; encode or drop the rest.") from None
    if table.ndim != 2 or 0 in table.shape:
        raise DataError(f"{name} must be a table with rows and columns, got shape {table.shape}.")
    if not np.isfinite(table).all():
        raise DataError(f"{name} must be finite; drop or fill missing values first.")
    return table


def _tables(X: ArrayLike, centres: ArrayLike) -> tuple[_Floats, _Floats]:
    """Check two tables that must have the same columns."""
    X, centres = _table(X, "the first table"), _table(centres, "the table of centres")
    if X.shape[1] != centres.shape[1]:
        raise DataError(
            f"both tables must have the same columns, got {X.shape[1]} and {centres.shape[1]}."
        )
    return X, centres


def _labelled(X: ArrayLike, labels: ArrayLike) -> tuple[_Floats, NDArray[np.intp], _Floats]:
    """Check a labelled table; return it with labels 0 .. k-1 and the k cluster means."""
    X, labels = _table(X, "X"), np.asarray(labels)
    if labels.shape != (len(X),):
        raise DataError(
            "labels must be a flat list with one entry per row of X; give those of the same rows."
        )
    _, codes = np.unique(labels, return_inverse=True)
    counts = np.bincount(codes)
    sums = np.zeros((len(counts), X.shape[1]))
    np.add.at(sums, codes, X)
    return X, codes, sums / counts[:, None]
