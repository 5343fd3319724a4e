"""``DPKMeans``: differentially private k-means with scikit-learn's manners."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import fields
from html import escape
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

from cloister.errors import AccuracyWarning, DataError, PlanError
from cloister.estimators.tables import (
    check_bounds,
    check_schema,
    check_whole,
    local_labels,
    nearest_centre,
    new_rows,
    open_account,
    read_silos,
)
from cloister.jobs import JobResult, run_job
from cloister.privacy.ledger import Ledger
from cloister.privacy.noise import DiscreteNoise, NoiseSource
from cloister.protocol.plan import Plan
from cloister.schema import Schema
from cloister.stability import N_RUNS, Stability, stability
from cloister.task import Task
from cloister.tasks import TASKS
from cloister.tasks.clustering import kmeans_tasks
from cloister.tasks.clustering.auto import Auto
from cloister.tasks.clustering.clusters import clusters_above_noise, records_left_out
from cloister.tasks.clustering.select_k import SelectK

Floats = NDArray[np.float64]


class DPKMeans(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BaseEstimator):
    """Differentially private k-means over one table or over several silos.

    Parameters
    ----------
    n_clusters : int, >= 1
    epsilon : float, > 0
        Privacy budget of one fit. There is no default.
    bounds : (low, high) or Schema
        Public bounds of each column, as two numbers or two sequences, data units; records are
        clipped to them. Never take them from the records. A schema also says what to do with
        missing values and whose rows belong together.
    nominal_n : int, optional
        Public contract value for the number of records. Without it, 2 % of the budget pay for a
        noisy count.
    delta : float, optional
        ``min(1e-6, 1 / (100 nominal_n))`` if not given, 1e-6 without `nominal_n`; the value used
        is in ``delta_``.
    ledger : Ledger or path, optional
        Where the fit is charged before it releases anything; it refuses to overspend. Without one
        nothing remembers what was spent.
    dataset : str, optional
        Name under which the ledger knows the data; a schema has its own.
    algorithm : str
        "auto" is our own and the most accurate; others are "fastlloyd", "glloyd", "sulloyd",
        "eugkm", "hybrid" (both for few columns), "lshtree", "feddp-init", "dpem",
        "balcan", "maxcover-histogram", "kmeans-guarantee-dp", "subcluster-dp"; see
        :mod:`cloister.tasks`.
    alpha : float, > 0
        FastLloyd's radius as a part of the box; ignored by the others' formulas, so refused there.
    rounds : int, optional
        Number of noisy rounds; by default 2 to 7 by the method's error model. Refused by methods
        whose rounds are fixed.
    relocate_empty : bool, optional
        Whether a centre that noise alone could explain starts again beside the largest cluster;
        costs nothing. By default where the plan's numbers say that it pays: an average cluster has
        four times the noise of its count. The published methods do not (False). Of no meaning for
        a method without Lloyd's rounds.
    frac_bits : int in [4, 24]
        Records are rounded to multiples of ``2**-frac_bits`` of half a column's range.
    random_state : int, RandomState or None
        Seeds the public starting centres only. Noise takes no seed.

    Attributes
    ----------
    cluster_centers_ : ndarray of shape (n_clusters, n_features), data units
    centers_low_, centers_high_ : ndarray of shape (n_clusters, n_features), data units
        Ends of the 95 % interval of the noise of the last round, for the mean before it was shrunk
        or brought back into the box, so that a centre may lie outside; the whole box where the
        cluster does not stand out of the noise. It covers neither sampling nor the rounds before:
        what another fit would find is what :meth:`stability` says.
    centers_half_width_ : ndarray of shape (n_clusters, n_features), data units
        Half their distance.
    cluster_sizes_, sizes_half_width_ : ndarray of shape (n_clusters,)
        Noisy sizes and the half-width of their noise interval.
    history_ : tuple of dict
        The released centres and sizes before the first round and after each.
    n_iter_ : int
    spent_ : float
        Epsilon spent, at ``delta_``.
    delta_ : float
    plan_ : Plan
    result_ : JobResult
    labels_ : ndarray of shape (n_samples,)
        Cluster of each record of this fit, -1 for one that was left out. **Not private**: it is
        made from the records in this process, and is neither saved nor reported. Absent after
        fitting silos.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features_in_,)

    Notes
    -----
    Neighbouring data sets differ by one record (or one unit of the schema) added or removed.
    Columns are compared after each was scaled by its public range; `transform` and `score` use
    these scaled distances.

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

    def __init__(
        self,
        n_clusters: int,
        *,
        epsilon: float,
        bounds: Any,
        nominal_n: int | None = None,
        delta: float | None = None,
        ledger: Ledger | str | Path | None = None,
        dataset: str | None = None,
        algorithm: str = "auto",
        alpha: float | None = None,
        rounds: int | None = None,
        relocate_empty: bool | None = None,
        frac_bits: int = 16,
        random_state: Any = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.epsilon = epsilon
        self.bounds = bounds
        self.nominal_n = nominal_n
        self.delta = delta
        self.ledger = ledger
        self.dataset = dataset
        self.algorithm = algorithm
        self.alpha = alpha
        self.rounds = rounds
        self.relocate_empty = relocate_empty
        self.frac_bits = frac_bits
        self.random_state = random_state

    _new_noise: Callable[[], NoiseSource] = DiscreteNoise

    def fit(self, X: Any, y: object = None) -> Self:
        """Release private centres of the records.

        Parameters
        ----------
        X : array_like of shape (n_samples, n_features), DataFrame, path, or list of these
            A list is one silo each: their vectors are masked and summed as in a federation. Paths
            name CSV or Parquet files, which may be larger than memory.
        y : ignored

        Returns
        -------
        DPKMeans

        Raises
        ------
        PlanError, DataError
            Before anything is spent.
        BudgetExceeded
            If the ledger refuses.

        Warns
        -----
        AccuracyWarning
            If the noisy sizes sum to far less than `nominal_n`: many records are in no cluster.
        """
        schema, records, local = self._read(X)
        self._release(schema, records)
        self._label(local)
        return self

    def _read(self, X: Any) -> tuple[Schema, dict[str, Any], Floats | None]:
        """Return the contract, the silos' records on the grid, and the table if there is one."""
        self._check_parameters()
        return read_silos(self, X, frac_bits=self.frac_bits)

    def _label(self, local: Floats | None) -> None:
        """Keep the cluster of each record of a table; not private, and not stored."""
        if local is not None:
            self.labels_ = local_labels(self._fitted_grid(), local, self.cluster_centers_)

    def _release(self, schema: Schema, records: Mapping[str, Any]) -> None:
        """Run the job and keep what it released."""
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        options: dict[str, Any] = {
            "n_clusters": int(self.n_clusters),
            "public_seed": seed,
            "frac_bits": int(self.frac_bits),
        }
        if "relocate_empty" in _fields_of(kmeans_tasks()[self.algorithm]):
            options["relocate_empty"] = self.relocate_empty
        if self.rounds is not None:
            options["rounds"] = int(self.rounds)
        if self.alpha is not None:
            options["alpha"] = float(self.alpha)
        result = run_job(
            kmeans_tasks()[self.algorithm],
            schema,
            records,
            epsilon=self.epsilon,
            delta=self.delta,
            nominal_n=None if self.nominal_n is None else int(self.nominal_n),
            noise=self._new_noise(),
            account=open_account(self, schema),
            **options,
        )
        self._keep(result)
        self._warn()

    def _warn(self, stacklevel: int = 4) -> None:
        """Warn if the released sizes leave many of the agreed records out."""
        if said := records_left_out(self.result_.results, self.plan_.nominal_n):
            warnings.warn(said, AccuracyWarning, stacklevel=stacklevel)

    def _keep(self, result: JobResult) -> None:
        """Set the learned attributes from a released result."""
        self.result_ = result
        self.plan_: Plan = result.plan
        self.cluster_centers_: Floats = result.results["centres"]
        self.centers_low_: Floats = result.results["low"]
        self.centers_high_: Floats = result.results["high"]
        self.centers_half_width_: Floats = (self.centers_high_ - self.centers_low_) / 2
        self.cluster_sizes_: Floats = result.results["sizes"]
        self.sizes_half_width_: Floats = result.results["size_half_width"]
        self.history_ = result.history
        self.n_iter_ = result.plan.rounds
        self.spent_ = result.epsilon()
        self.delta_ = result.plan.budget.delta if result.plan.budget else 0.0
        self.n_features_in_ = result.plan.grid.n_features
        self._n_features_out = len(self.cluster_centers_)
        if result.plan.columns != tuple(f"x{j}" for j in range(self.n_features_in_)):
            self.feature_names_in_ = np.array(result.plan.columns, dtype=object)

    def stability(self, n_runs: int = N_RUNS, *, random_state: Any = 0) -> Stability:
        """Forecast what another fit would find, from the released values alone; costs nothing.

        Parameters
        ----------
        n_runs : int, >= 2
            Simulated reruns of the plan.
        random_state : int, RandomState or None
            Of the simulation.

        Returns
        -------
        Stability
            How far each centre moves between two reruns, and how often its cluster is found.

        Notes
        -----
        :func:`cloister.stability.stability` says what is simulated.
        """
        check_is_fitted(self)
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        return stability(self.result_, n_runs, seed=seed)

    def predict(self, X: ArrayLike) -> NDArray[np.int32]:
        """Return the nearest centre of each record; local, exact for the given X, costs nothing.

        Parameters
        ----------
        X : array_like of shape (n_samples, n_features), DataFrame, or path with a schema

        Returns
        -------
        ndarray of shape (n_samples,), int32
        """
        return self._nearest(self._checked(X))[0]

    def transform(self, X: ArrayLike) -> Floats:
        """Return the scaled distance of each record to each centre; local, costs nothing.

        Parameters
        ----------
        X : array_like of shape (n_samples, n_features), DataFrame, or path with a schema

        Returns
        -------
        ndarray of shape (n_samples, n_clusters)
        """
        grid = self._fitted_grid()
        distances: Floats = euclidean_distances(
            grid.normalise(self._checked(X)), grid.normalise(self.cluster_centers_)
        )
        return distances

    def score(self, X: ArrayLike, y: object = None) -> float:
        """Return minus the sum of squared scaled distances to the nearest centre.

        Local and exact for the given X: publishing it for private records is a release of its own.
        """
        return -float(self._nearest(self._checked(X))[1].sum())

    def save(self, path: str | Path) -> None:
        """Write the released model as JSON with its plan digest; labels are not part of it."""
        check_is_fitted(self)
        self.result_.save(path)

    @classmethod
    def load(cls, path: str | Path, *, bounds: Schema | None = None) -> DPKMeans:
        """Read a model to predict with; its parameters are those of its plan.

        To fit again, make a new estimator: a bought count and `alpha` are not among them.

        Parameters
        ----------
        path : path
            Written by :meth:`save`.
        bounds : Schema, optional
            The contract of the fit, if new records are to be read by it. A file does not hold it.

        Raises
        ------
        DataError
            If the file is not a model of this estimator.
        PlanError
            If the schema is not that of the model.
        """
        result = JobResult.load(path)
        plan, task = result.plan, result.plan.task
        if bounds is not None:
            check_schema(bounds, plan)
        algorithm = Auto.name if isinstance(task, SelectK) else task.name
        if algorithm not in kmeans_tasks() or plan.budget is None:
            raise DataError(
                f"model holds the task {task.name!r}, not one of {list(kmeans_tasks())}."
            )
        model = cls(
            result.results["centres"].shape[0],
            epsilon=plan.budget.epsilon,
            bounds=bounds or (plan.grid.low, plan.grid.high),
            nominal_n=plan.nominal_n,
            delta=plan.budget.delta,
            algorithm=algorithm,
            rounds=plan.rounds if "rounds" in _fields_of(type(task)) else None,
            relocate_empty=getattr(task, "relocate_empty", None),
            frac_bits=task.frac_bits,
        )
        model._keep(result)
        return model

    def _check_parameters(self) -> None:
        if self.algorithm not in kmeans_tasks():
            way = (
                "; 'lloyd' is not private, use sklearn.cluster.KMeans or cloister compare"
                if self.algorithm in TASKS
                else ""
            )
            raise PlanError(
                f"algorithm must be one of {list(kmeans_tasks())}, got {self.algorithm!r}{way}."
            )
        if self.alpha is not None and self.algorithm != "fastlloyd":
            raise PlanError(f"alpha belongs to 'fastlloyd', got it with {self.algorithm!r}.")
        if self.rounds is not None and "rounds" not in _fields_of(kmeans_tasks()[self.algorithm]):
            raise PlanError(f"rounds are fixed by the plan of {self.algorithm!r}; leave them out.")
        optional = {name: getattr(self, name) for name in ("nominal_n", "rounds")}
        given = {name: value for name, value in optional.items() if value is not None}
        check_whole(n_clusters=self.n_clusters, frac_bits=self.frac_bits, **given)
        check_bounds(self.bounds)

    def _checked(self, X: ArrayLike) -> Floats:
        check_is_fitted(self)
        return new_rows(self, X)

    def _fitted_grid(self) -> Any:
        check_is_fitted(self)
        return self.plan_.grid

    def _nearest(self, X: Floats) -> tuple[NDArray[np.int32], Floats]:
        """Return label and squared scaled distance of each record."""
        return nearest_centre(self._fitted_grid(), X, self.cluster_centers_)

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        """Show a fitted model as a table in notebooks."""
        bundle = {"text/plain": repr(self)}
        if hasattr(self, "result_"):
            bundle["text/html"] = _html(self)
        return bundle

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


def _fields_of(task: type[Task]) -> set[str]:
    """Return the names of a task's public numbers."""
    return {field.name for field in fields(task)}  # type: ignore[arg-type]  # as in Plan.to_dict


def _html(model: DPKMeans) -> str:
    """Return released centres with their noise intervals as an HTML table."""
    head = "".join(f"<th>{escape(name)}</th>" for name in ("noisy size", *model.plan_.columns))
    rows = "".join(
        f"<tr><th>{index}</th><td>{size:.0f} ± {spread:.0f}</td>"
        + "".join(
            f"<td>{c:.4g} [{a:.4g}, {b:.4g}]</td>"
            for c, a, b in zip(centre, low, high, strict=True)
        )
        + "</tr>"
        for index, (size, spread, centre, low, high) in enumerate(
            zip(
                model.cluster_sizes_,
                model.sizes_half_width_,
                model.cluster_centers_,
                model.centers_low_,
                model.centers_high_,
                strict=True,
            )
        )
    )
    caption = (
        f"DPKMeans ({escape(model.algorithm)}): epsilon {model.spent_:.4g}, "
        f"delta {model.delta_:.2g}; ± and [ , ] are 95 % of the noise; noise from: "
        f"{escape(model.result_.noise)}. {clusters_above_noise(model.result_.results)}"
    )
    return f"<table><caption>{caption}</caption><tr><th></th>{head}</tr>{rows}</table>"
