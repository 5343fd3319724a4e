"""``CuratorKMeans``: k-means by methods that need all records in one place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    ClusterMixin,
    TransformerMixin,
)
from sklearn.metrics.pairwise import euclidean_distances
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from cloister.errors import PlanError
from cloister.estimators.tables import (
    check_bounds,
    check_whole,
    local_labels,
    nearest_centre,
    new_rows,
    open_account,
    read_silos,
)
from cloister.privacy.ledger import Ledger
from cloister.privacy.noise import DiscreteNoise, NoiseSource
from cloister_lab.curator import METHODS
from cloister_lab.curator.run import CuratorResult, run_method

Floats = NDArray[np.float64]


class CuratorKMeans(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BaseEstimator):
    """k-means by a method that is not a sum: one curator must hold all records.

    For comparisons, and where all records are in one place anyway. Silos that may not pool their
    records need :class:`~cloister.DPKMeans`.

    Parameters
    ----------
    n_clusters : int, >= 1
    epsilon : float, > 0
        Privacy budget of one fit. There is no default.
    bounds : (low, high) or Schema
        Public bounds of each column, as two numbers or two sequences, data units; records are
        clipped to them. Never take them from the records. The unit of privacy of a schema must be
        the row.
    algorithm : str
        "maxcover" is private. "kmeans-guarantee" and "subcluster" are there to be compared with:
        they are **not private** for any epsilon, and say so in a `PrivacyWarning`.
    nominal_n, delta, ledger, dataset, random_state
        As of :class:`~cloister.DPKMeans`. A ledger refuses methods that are not private.

    Attributes
    ----------
    cluster_centers_ : ndarray of shape (n_clusters, n_features), data units
    spent_ : float
        Epsilon spent, at ``delta_``; infinite for a method that is not private.
    delta_ : float
    result_ : CuratorResult
    labels_ : ndarray of shape (n_samples,)
        Cluster of each record of this fit, -1 for one that was left out. **Not private**: it is
        made from the records in this process, and is not saved.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features_in_,)

    Notes
    -----
    Neighbouring tables differ by one record added or removed. Columns are compared after each was
    scaled by its public range; `transform` and `score` use these scaled distances. There are no
    noise intervals: these methods release centres and nothing else.

    References
    ----------
    Nguyen, Chaturvedi, Xu, AAAI 2021; see :mod:`cloister_lab.curator.max_cover`.

    Examples
    --------
    >>> import numpy as np
    >>> from cloister_lab.estimators import CuratorKMeans
    >>> X = np.random.default_rng(0).normal([[0.0], [8.0]], 1, (2, 500)).reshape(-1, 1)
    >>> model = CuratorKMeans(2, epsilon=2.0, bounds=(-5, 15), nominal_n=1000).fit(X)
    >>> model.cluster_centers_.shape
    (2, 1)
    """

    def __init__(
        self,
        n_clusters: int,
        *,
        epsilon: float,
        bounds: Any,
        algorithm: str = "maxcover",
        nominal_n: int | None = None,
        delta: float | None = None,
        ledger: Ledger | str | Path | None = None,
        dataset: str | None = None,
        random_state: Any = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.epsilon = epsilon
        self.bounds = bounds
        self.algorithm = algorithm
        self.nominal_n = nominal_n
        self.delta = delta
        self.ledger = ledger
        self.dataset = dataset
        self.random_state = random_state

    _new_noise: Callable[[], NoiseSource] = DiscreteNoise
    _frac_bits = 16

    def fit(self, X: Any, y: object = None) -> Self:
        """Release centres of the records.

        Parameters
        ----------
        X : array_like of shape (n_samples, n_features), DataFrame, path, or list of these
            A list is put together first: the curator sees everything.

        Raises
        ------
        PlanError, DataError
            Before anything is spent.
        BudgetExceeded
            If the ledger refuses.

        Warns
        -----
        PrivacyWarning
            If the method is not private.
        """
        if self.algorithm not in METHODS:
            raise PlanError(
                f"algorithm must be one of {list(METHODS)}, got {self.algorithm!r}; "
                "methods that are sums belong to DPKMeans."
            )
        check_whole(n_clusters=self.n_clusters)
        if self.nominal_n is not None:
            check_whole(nominal_n=self.nominal_n)
        check_bounds(self.bounds)
        schema, silos, local = read_silos(self, X, frac_bits=self._frac_bits)
        account = open_account(self, schema)
        result = run_method(
            METHODS[self.algorithm],
            schema,
            silos["silo-0"] if len(silos) == 1 else [c for part in silos.values() for c in part],
            epsilon=self.epsilon,
            delta=self.delta,
            nominal_n=None if self.nominal_n is None else int(self.nominal_n),
            frac_bits=self._frac_bits,
            noise=self._new_noise(),
            account=account,
            n_clusters=int(self.n_clusters),
            public_seed=int(check_random_state(self.random_state).randint(2**31 - 1)),
        )
        self.result_: CuratorResult = result
        self.cluster_centers_: Floats = result.centres
        self.spent_ = result.epsilon()
        self.delta_ = result.budget.delta
        self.n_features_in_ = len(schema.names)
        self._n_features_out = len(result.centres)
        self._grid = schema.grid(self._frac_bits)
        if schema.names != tuple(f"x{j}" for j in range(self.n_features_in_)):
            self.feature_names_in_ = np.array(schema.names, dtype=object)
        if local is not None:
            self.labels_ = local_labels(self._grid, local, result.centres)
        return self

    def predict(self, X: ArrayLike) -> NDArray[np.int32]:
        """Return the nearest centre of each record; local, exact for the given X, costs nothing.

        Parameters
        ----------
        X : array_like of shape (n_samples, n_features), DataFrame, or path with a schema

        Returns
        -------
        ndarray of shape (n_samples,), int32
        """
        X = self._checked(X)
        return nearest_centre(self._grid, X, self.cluster_centers_)[0]

    def transform(self, X: ArrayLike) -> Floats:
        """Return the scaled distance of each record to each centre; local, costs nothing.

        Parameters
        ----------
        X : array_like of shape (n_samples, n_features), DataFrame, or path with a schema

        Returns
        -------
        ndarray of shape (n_samples, n_clusters)
        """
        X = self._checked(X)
        distances: Floats = euclidean_distances(
            self._grid.normalise(X), self._grid.normalise(self.cluster_centers_)
        )
        return distances

    def score(self, X: ArrayLike, y: object = None) -> float:
        """Return minus the sum of squared scaled distances to the nearest centre.

        Local and exact for the given X: publishing it for private records is a release of its own.
        """
        X = self._checked(X)
        return -float(nearest_centre(self._grid, X, self.cluster_centers_)[1].sum())

    def _checked(self, X: ArrayLike) -> Floats:
        check_is_fitted(self)
        return new_rows(self, X)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what must not be stored: labels are made from the records."""
        state = dict(super().__getstate__())
        state.pop("labels_", None)
        return state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = False
        tags.non_deterministic = True  # fresh noise in every fit
        return tags
