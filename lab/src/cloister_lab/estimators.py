"""``CuratorKMeans``: k-means by methods that need all records in one place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator

from cloister.core.arrays import Floats
from cloister.core.errors import PlanError
from cloister.data.loss import watch_loss
from cloister.estimators.base import private_tags, public_seed
from cloister.estimators.centres import CentreModel
from cloister.estimators.release import BudgetParameters, check_whole
from cloister.estimators.tables import read_silos
from cloister.privacy.ledger import Ledger
from cloister.privacy.noise import DiscreteNoise, NoiseSource
from cloister_lab.curator import METHODS
from cloister_lab.curator.run import CuratorResult, run_method


@dataclass(kw_only=True, eq=False, repr=False)
class CuratorKMeans(CentreModel, BaseEstimator):
    """k-means by a method that is not a sum: one curator must hold all records.

    Silos that may not pool their records need :class:`~cloister.DPKMeans`.

    Parameters
    ----------
    epsilon : float, > 0
        Privacy budget of one fit. There is no default.
    bounds : (low, high) or Schema
        Public bounds of each column, as two numbers or two sequences, data units; records are
        clipped to them. Never take them from the records. The unit of privacy of a schema must be
        the row.
    algorithm : str
        "maxcover", "gupt", "decaying" and "privgene" are private. "kmeans-guarantee", "subcluster"
        and "sample-aggregate" are there to be compared with: they are **not private**, and say so
        in a `PrivacyWarning`.
    nominal_n, delta, ledger, dataset, random_state, max_loss
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
    scaled by its public range; `transform` and `score` use these scaled distances of records as
    they are, ``labels_`` and `predict` those of clipped and rounded ones. There are no
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

    _new_noise: ClassVar[Callable[[], NoiseSource]] = DiscreteNoise

    n_clusters: int = field(kw_only=False)
    epsilon: float
    bounds: Any
    algorithm: str = "maxcover"
    nominal_n: int | None = None
    delta: float | None = None
    ledger: Ledger | str | Path | None = None
    dataset: str | None = None
    random_state: Any = None
    max_loss: float | None = None

    def fit(self, X: Any, y: object = None) -> Self:
        """Release centres of the records; a `PrivacyWarning` is given if the method is not private.

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
        """
        if self.algorithm not in METHODS:
            raise PlanError(
                f"algorithm must be one of {list(METHODS)}, got {self.algorithm!r}; "
                "methods that are sums belong to DPKMeans."
            )
        check_whole(n_clusters=self.n_clusters)
        spending = BudgetParameters(
            self.epsilon,
            self.bounds,
            self.nominal_n,
            self.delta,
            self.ledger,
            self.dataset,
            max_loss=self.max_loss,
        )
        data = read_silos(X, spending)
        watch_loss(data.records, {}, data.schema.names, spending.max_loss)
        silos = list(data.records.values())
        result = run_method(
            METHODS[self.algorithm],
            data.schema,
            silos[0] if len(silos) == 1 else [chunk for part in silos for chunk in part],
            epsilon=spending.epsilon,
            delta=spending.delta,
            nominal_n=spending.nominal_n,
            frac_bits=spending.frac_bits,
            noise=type(self)._new_noise(),
            account=spending.account(),
            n_clusters=int(self.n_clusters),
            public_seed=public_seed(self.random_state),
        )
        self.result_: CuratorResult = result
        self.cluster_centers_: Floats = result.centres
        self.spent_ = result.epsilon()
        self.delta_ = result.budget.delta
        self.n_features_in_ = len(data.schema.names)
        self._grid = data.schema.grid(spending.frac_bits)
        self._name_features(data.names, data.schema.names)
        self._label(data)
        return self

    def _name_features(self, known: tuple[str, ...], names: tuple[str, ...]) -> None:
        """Keep the names of columns where there are any."""
        self.__dict__.pop("feature_names_in_", None)
        if known or names != tuple(f"x{j}" for j in range(len(names))):
            self.feature_names_in_ = np.array(names, dtype=object)

    def __sklearn_tags__(self) -> Any:
        return private_tags(super().__sklearn_tags__())
