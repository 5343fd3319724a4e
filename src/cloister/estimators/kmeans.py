"""``DPKMeans``: differentially private k-means that works like scikit-learn's."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any, Self

from sklearn.utils.validation import check_is_fitted

from cloister.app.release import Release
from cloister.core.arrays import Floats
from cloister.core.errors import AccuracyWarning, PlanError
from cloister.data.schema import Schema
from cloister.estimators.base import PrivateEstimator, public_seed
from cloister.estimators.centres import CentreModel
from cloister.estimators.release import check_whole
from cloister.estimators.tables import SiloData
from cloister.protocol.plan import Plan
from cloister.protocol.task import Task
from cloister.tasks import TASKS
from cloister.tasks.clustering.algorithms import kmeans_tasks
from cloister.tasks.clustering.auto import Auto
from cloister.tasks.clustering.clusters import none_above_noise, records_left_out
from cloister.tasks.clustering.select_k import SelectK
from cloister.tasks.clustering.stability import N_RUNS, Stability, stability
from cloister.tasks.options import check_known, options_of


@dataclass(kw_only=True, eq=False, repr=False)
class DPKMeans(CentreModel, PrivateEstimator):
    """Differentially private k-means over one table or over several silos.

    Parameters
    ----------
    n_clusters : int, >= 1
    algorithm : str
        "auto" is our own and the most accurate; others are "fastlloyd", "glloyd", "sulloyd",
        "eugkm", "hybrid" (both for few columns), "lshtree", "feddp-init", "dpem",
        "balcan", "maxcover-histogram", "kmeans-guarantee-dp", "subcluster-dp"; see
        :mod:`cloister.tasks`.
    alpha : float, > 0
        FastLloyd's radius as a part of the box; the others refuse it.
    rounds : int, optional
        Number of noisy rounds; by default 2 to 7 by the method's error model. Refused by methods
        whose rounds are fixed.
    relocate_empty : bool, optional
        Whether a centre that noise alone could explain starts again beside the largest cluster;
        costs nothing. By default where an average cluster has four times the noise of its count.
        The published methods do not (False). Of no meaning for a method without Lloyd's rounds.
    random_state : int, RandomState or None
        Seeds the public starting centres only. Noise takes no seed.
    epsilon, bounds, nominal_n, delta, ledger, dataset, frac_bits, max_loss
        As for every :class:`~cloister.estimators.base.PrivateEstimator`.

    Attributes
    ----------
    cluster_centers_ : ndarray of shape (n_clusters, n_features), data units
    centers_low_, centers_high_ : ndarray of shape (n_clusters, n_features), data units
        Ends of the 95 % confidence interval (privacy noise of the last round only), for the mean
        before it was shrunk or brought back into the box, so that a centre may lie outside; the
        whole box where the cluster does not stand out of the noise. What another fit would find is
        what :meth:`stability` says.
    centers_half_width_ : ndarray of shape (n_clusters, n_features), data units
        Half their distance.
    cluster_sizes_, sizes_half_width_ : ndarray of shape (n_clusters,)
        Noisy sizes and their margin of error.
    history_ : tuple of dict
        The released centres and sizes before the first round and after each.
    n_iter_ : int
    labels_ : ndarray of shape (n_samples,)
        Cluster of each record of this fit, -1 for one that was left out. **Not private**: it is
        made from the records in this process, and is neither saved nor reported. Absent after
        fitting silos, files or a database.
    result_, plan_, spent_, delta_, n_features_in_, feature_names_in_
        As for every :class:`~cloister.estimators.base.PrivateEstimator`.

    Notes
    -----
    Columns are compared after each was scaled by its public range; `transform` and `score` use
    these scaled distances. ``labels_`` and `predict` are of records as a fit has them, clipped to
    the bounds and rounded to the grid; `transform` and `score` take them as they are.

    References
    ----------
    Diaa, Humphries, Kerschbaum, arXiv:2405.02437; see :mod:`cloister.tasks.clustering.kmeans`.

    Examples
    --------
    >>> import numpy as np
    >>> from cloister import DPKMeans
    >>> X = np.random.default_rng(0).normal([[0.0], [8.0]], 1, (2, 500)).reshape(-1, 1)
    >>> model = DPKMeans(2, epsilon=1.0, bounds=(-5, 15), nominal_n=1000).fit(X)
    >>> model.cluster_centers_.shape
    (2, 1)
    """

    n_clusters: int = field(kw_only=False)
    algorithm: str = "auto"
    alpha: float | None = None
    rounds: int | None = None
    relocate_empty: bool | None = None
    random_state: Any = None

    def fit(self, X: Any, y: object = None, **refused: Any) -> Self:
        """Release private centres of the records, as :meth:`PrivateEstimator.fit` says.

        Warns
        -----
        AccuracyWarning
            If the noisy sizes sum to far less than `nominal_n`: many records are in no cluster. If
            no cluster stands out of the noise: none was found.
        """
        data = self._fit(X, y, **refused)
        self._finish(data)
        return self

    def _finish(self, data: SiloData) -> None:
        """Label the records of a table, and warn of what is missing from the clusters."""
        self._label(data)
        found = self.result_.results
        remarks = records_left_out(found, self.plan_.nominal_n), none_above_noise(found)
        for remark in filter(None, remarks):
            warnings.warn(remark, AccuracyWarning, stacklevel=3)

    def _check(self) -> None:
        if self.algorithm not in kmeans_tasks():
            hint = "; 'lloyd' is not private, use sklearn.cluster.KMeans or cloister compare"
            raise PlanError(
                f"algorithm must be one of {list(kmeans_tasks())}, got {self.algorithm!r}"
                f"{hint if self.algorithm in TASKS else ''}."
            )
        asked = [name for name in ("alpha", "rounds") if getattr(self, name) is not None]
        check_known(self._kind, asked)
        check_whole(n_clusters=self.n_clusters)

    @property
    def _kind(self) -> type[Task]:
        return kmeans_tasks()[self.algorithm]

    def _options(self, data: SiloData) -> dict[str, Any]:
        known = {option.name for option in options_of(self._kind)}
        # None has a meaning of its own here: start empty centres again where that pays
        own = {"relocate_empty": self.relocate_empty} if "relocate_empty" in known else {}
        return super()._options(data) | own

    def _keep(self, result: Release) -> None:
        super()._keep(result)
        self._grid = result.plan.grid
        self._set(_ATTRIBUTES)
        self.centers_half_width_: Floats = (self.centers_high_ - self.centers_low_) / 2
        self.history_ = result.history
        self.n_iter_ = result.plan.rounds

    def stability(self, n_runs: int = N_RUNS, *, random_state: Any = 0) -> Stability:
        """Forecast what another fit would find, from the released values alone; costs nothing.

        `random_state` seeds the simulation; see
        :func:`cloister.tasks.clustering.stability.stability`.
        """
        check_is_fitted(self)
        return stability(self.result_, n_runs, seed=public_seed(random_state))

    @classmethod
    def _holds(cls) -> str:
        return f"one of {list(kmeans_tasks())}"

    @classmethod
    def _own_parameters(cls, result: Release) -> dict[str, Any] | None:
        task = result.plan.task
        algorithm = Auto.name if isinstance(task, SelectK) else task.name
        if algorithm not in kmeans_tasks():
            return None
        options = {option.name for option in options_of(type(task))}
        return {
            "n_clusters": len(result.results["centres"]),
            "algorithm": algorithm,
            "rounds": result.plan.rounds if "rounds" in options else None,
            "relocate_empty": getattr(task, "relocate_empty", None),
        }

    @classmethod
    def _contract(cls, plan: Plan, schema: Schema | None) -> dict[str, Any]:
        if schema is None:  # new records may then be given in the numbers of the grid
            return {"bounds": (plan.grid.low, plan.grid.high)}
        return super()._contract(plan, schema)


_ATTRIBUTES = {
    "cluster_centers_": "centres",
    "centers_low_": "low",
    "centers_high_": "high",
    "cluster_sizes_": "sizes",
    "sizes_half_width_": "size_half_width",
}
"""Attributes by the names of the task's results."""
