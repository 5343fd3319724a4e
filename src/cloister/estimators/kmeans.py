"""``DPKMeans``: differentially private k-means with the interface of scikit-learn."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from cloister.app.release import Release
from cloister.core.arrays import Floats
from cloister.core.errors import AccuracyWarning, PlanError
from cloister.data.schema import Schema
from cloister.estimators.base import PrivateEstimator
from cloister.estimators.centres import CentreModel
from cloister.estimators.release import check_whole
from cloister.estimators.tables import SiloData
from cloister.protocol.plan import Plan
from cloister.protocol.task import Task
from cloister.tasks import TASKS
from cloister.tasks.clustering.algorithms import kmeans_tasks
from cloister.tasks.clustering.auto import Auto
from cloister.tasks.clustering.clusters import (
    LEFT_OUT,
    none_above_noise,
    records_left_out,
    verdicts_of,
)
from cloister.tasks.clustering.select_k import SelectK
from cloister.tasks.options import options_of


@dataclass(kw_only=True, eq=False, repr=False)
class DPKMeans(CentreModel, PrivateEstimator):
    """Differentially private k-means over one table or over several silos.

    Parameters
    ----------
    n_clusters : int, >= 1
    algorithm : str
        "auto" is this package's method and the most accurate. Published methods are "fastlloyd",
        "glloyd" and "sulloyd"; the package cloister-lab adds others, see :mod:`cloister.tasks`.
    alpha : float, > 0
        Radius of FastLloyd as a fraction of the box; other methods refuse it.
    rounds : int, optional
        Number of noisy rounds; by default 2 to 7 by the method's error model. Methods with a fixed
        number refuse it.
    relocate_empty : bool, optional
        If True, a centre whose size noise alone can explain is moved next to the largest cluster,
        at no cost. By default if the size of an average cluster is four times its noise. False in
        the published methods. Ignored by methods without Lloyd rounds.
    estimate : bool, optional
        "fastlloyd": if True, a part of the budget is for rounds that give intervals and verdicts.
        By default if they can determine a cluster. False in the published method.
    random_state : int, RandomState or None
        Seed of the public starting centres only; the noise has no seed.
    epsilon, bounds, nominal_n, delta, ledger, dataset, frac_bits, max_loss
        As for every :class:`~cloister.estimators.base.PrivateEstimator`.

    Attributes
    ----------
    cluster_centers_ : ndarray of shape (n_clusters, n_features), data units
    centers_low_, centers_high_ : ndarray of shape (n_clusters, n_features), data units
        Ends of the 95 % confidence interval (privacy noise only). With a verdict it is around the
        centre, for the centre that k-means on all records finds from these. With other methods it
        is for the mean of the last round alone, before shrinkage and projection into the box, so a
        centre may be outside. It is the whole box if the cluster size is within its noise. NaN
        for clusters that are not determined.
    centers_half_width_ : ndarray of shape (n_clusters, n_features), data units
        Half the distance of these ends.
    verdict_ : ndarray of shape (n_clusters,), str
        "determined": k-means on all records has the cluster. "numbers only": the centre holds, but
        nothing sets the cluster apart. "not determined": another release may find another one.
        "not known" for methods that cannot tell.
    cluster_sizes_, sizes_half_width_ : ndarray of shape (n_clusters,)
        Noisy sizes and the half-width of their intervals, NaN for clusters not determined. With a
        verdict a size is for the records nearest to the released centre.
    history_ : tuple of dict
        The released centres and sizes before the first round and after each.
    n_iter_ : int
    labels_ : ndarray of shape (n_samples,)
        Cluster of each record of this fit, -1 for one that was left out. **Not private**: computed
        from the records in this process, and neither saved nor reported. Absent after a fit of
        silos, files or a database.
    result_, plan_, spent_, delta_, n_features_in_, feature_names_in_
        As for every :class:`~cloister.estimators.base.PrivateEstimator`.

    Notes
    -----
    Distances are computed after each column is scaled by its public range, also in `transform` and
    `score`. ``labels_`` and `predict` use records that are clipped to the bounds and rounded to the
    grid, as in a fit. `transform` and `score` use the original records.

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
    estimate: bool | None = None
    random_state: Any = None

    def fit(self, X: Any, y: object = None, **refused: Any) -> Self:
        """Release private centres of the records; see :meth:`PrivateEstimator.fit`.

        Warns
        -----
        AccuracyWarning
            If the noisy sizes sum to far less than `nominal_n`, so that many records are in no
            cluster. If no size differs from zero beyond the noise, so that no cluster was found.
        """
        data = self._fit(X, y, **refused)
        self._finish(data)
        return self

    def _finish(self, data: SiloData) -> None:
        """Label the records of a table, and warn if clusters or records are missing."""
        self._label(data)
        results = self.result_.results
        # Without noisy numbers, the fits of a search repeat a sentence, which Python shows once.
        few = records_left_out(results, self.plan_.nominal_n) and (
            f"nominal_n is {self.plan_.nominal_n:,}, but the noisy sizes sum to less than "
            f"{1 - LEFT_OUT:.0%} of it: records are in no cluster, or there are fewer than agreed; "
            "another method, start or number of clusters may find them, in another release."
        )
        for remark in filter(None, (few, none_above_noise(results))):
            warnings.warn(remark, AccuracyWarning, stacklevel=3)

    def _check(self) -> None:
        # Checked here, because methods of the laboratory are known only if it is installed.
        if self.algorithm not in kmeans_tasks():
            hint = "; 'lloyd' is not private, so use sklearn.cluster.KMeans or cloister compare"
            raise PlanError(
                f"algorithm must be one of {list(kmeans_tasks())}, got {self.algorithm!r}"
                f"{hint if self.algorithm in TASKS else ''}."
            )
        for name in ("alpha", "rounds", "estimate"):
            having = [n for n, task in kmeans_tasks().items() if name in _names_of(task)]
            if getattr(self, name) is not None and self.algorithm not in having:
                raise PlanError(
                    f"{name} must be omitted for algorithm {self.algorithm!r}; give it "
                    f"to one of {', '.join(having)}."
                )
        check_whole(n_clusters=self.n_clusters)

    @property
    def _kind(self) -> type[Task]:
        return kmeans_tasks()[self.algorithm]

    def _options(self, data: SiloData) -> dict[str, Any]:
        declared = _names_of(self._kind)
        # The base class drops None, which here means: relocate empty centres if it reduces the
        # error.
        relocate = {"relocate_empty": self.relocate_empty} if "relocate_empty" in declared else {}
        return super()._options(data) | relocate

    def _keep(self, result: Release) -> None:
        super()._keep(result)
        self._grid = result.plan.grid
        self._set(_ATTRIBUTES)
        # The interval need not be symmetric about the centre.
        self.centers_half_width_: Floats = (self.centers_high_ - self.centers_low_) / 2
        verdict = result.results.get("verdict")
        words = ["not known"] * self.n_clusters if verdict is None else verdicts_of(verdict)
        self.verdict_ = np.array(words)
        self.history_ = result.history
        self.n_iter_ = result.plan.rounds

    @classmethod
    def _holds(cls) -> str:
        return f"one of {list(kmeans_tasks())}"

    @classmethod
    def _own_parameters(cls, result: Release) -> dict[str, Any] | None:
        task = result.plan.task
        # A model of select_k is a model of auto with the selected k.
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
        if schema is None:  # predictions then need only the bounds of the grid
            return {"bounds": list(zip(plan.grid.low, plan.grid.high, strict=True))}
        return super()._contract(plan, schema)


def _names_of(task: type[Task]) -> set[str]:
    """Return the names of a task's options."""
    return {option.name for option in options_of(task)}


_ATTRIBUTES = {
    "cluster_centers_": "centres",
    "centers_low_": "low",
    "centers_high_": "high",
    "cluster_sizes_": "sizes",
    "sizes_half_width_": "size_half_width",
}
"""Attributes by the names of the task's results."""
