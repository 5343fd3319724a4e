"""Private bounds, scaling, principal components, and numbers about the columns of a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
from sklearn.base import TransformerMixin
from sklearn.utils.validation import check_is_fitted

from cloister.app.release import Release
from cloister.core.arrays import Floats
from cloister.core.errors import PlanError
from cloister.core.estimate import ENDS
from cloister.estimators.base import PrivateEstimator
from cloister.estimators.release import BudgetParameters, ReleasedModel, release
from cloister.estimators.tables import new_rows, read_silos
from cloister.protocol.task import Task, Transformer
from cloister.tasks.columns import grid_of
from cloister.tasks.preparation.bounds import Bounds
from cloister.tasks.preparation.pca import PCA
from cloister.tasks.preparation.quantiles import Quantiles
from cloister.tasks.preparation.scaled import Scaled
from cloister.tasks.preparation.standardise import Standardise
from cloister.tasks.preparation.statistics import Statistics
from cloister.tasks.tables.describe import Describe

if TYPE_CHECKING:
    import pandas as pd

    from cloister.privacy.ledger import Ledger


@dataclass(kw_only=True, eq=False, repr=False)
class _Preparing(TransformerMixin, PrivateEstimator):
    """Transform tables as the results of a fitted task say."""

    @property
    def _fitted(self) -> Transformer:
        check_is_fitted(self)
        return cast(Transformer, self.plan_.task)

    def transform(self, X: Any) -> Floats:
        """Transform a table; local, costs nothing.

        Parameters
        ----------
        X : array_like of shape (n_samples, n_features), DataFrame, or path with a schema

        Returns
        -------
        ndarray of shape (n_samples, n_features_out)
            Clipped first to the public bounds. With a schema, categories are their numbers.

        Raises
        ------
        DataError
            If the schema drops a record of X.
        """
        task, grid = self._fitted, self.plan_.grid
        rows = task.transform(self.result_.results, grid.encode(new_rows(self, X)))
        return grid_of(task.output, grid.frac_bits).decode(rows / grid.one)

    def get_feature_names_out(self, input_features: object = None) -> Any:
        """Return the names of the columns after the transformation."""
        return np.array([column.name for column in self._fitted.output], dtype=object)


def _unscaled(model: _Preparing, X: Any, undo: Callable[[Floats], Floats]) -> Floats:
    """Return data units for the columns that were scaled; other columns stay as they are."""
    values = np.array(X, dtype=np.float64)
    used = list(cast(Scaled, model._fitted).used)
    values[:, used] = undo(values[:, used])
    return values


@dataclass(kw_only=True, eq=False, repr=False)
class DPBounds(_Preparing):
    """Clip columns to two private quantiles and stretch them to ``[-1, 1]``.

    The public bounds may be wide, but never come from the records.

    Parameters
    ----------
    probabilities, refine
        As for :class:`~cloister.tasks.preparation.bounds.Bounds`; without `refine` a bound is one
        of at most 1024 cells of the public box.
    epsilon, bounds, nominal_n, delta, ledger, dataset, frac_bits, max_loss
        As for every :class:`~cloister.estimators.base.PrivateEstimator`.

    Attributes
    ----------
    low_, high_ : ndarray of shape (n_used,), data units
        The private bounds of the columns of numbers.
    low_interval_, high_interval_ : ndarray of shape (n_used, 2)
        Ends of an interval of each that holds with at least 95 % over the noise.

    Examples
    --------
    >>> import numpy as np
    >>> from cloister import DPBounds
    >>> X = np.random.default_rng(0).normal(50, 5, (2000, 2))
    >>> scaled = DPBounds(epsilon=1.0, bounds=(0, 10_000), nominal_n=2000).fit_transform(X)
    >>> bool(np.abs(scaled).max() <= 1)
    True
    """

    _task: ClassVar[type[Task]] = Bounds

    probabilities: Sequence[float] | None = None
    refine: bool = True

    def _keep(self, result: Release) -> None:
        super()._keep(result)
        results = result.results
        self.low_, self.high_ = results["lower"], results["upper"]
        ends = np.stack([results["low"], results["high"]], axis=2)
        self.low_interval_, self.high_interval_ = ends[:, 0], ends[:, 1]

    def inverse_transform(self, X: Any) -> Floats:
        """Return data units for columns that were scaled; other columns stay as they are."""
        span = self.high_ - self.low_
        return _unscaled(self, X, lambda values: self.low_ + (values + 1) / 2 * span)


@dataclass(kw_only=True, eq=False, repr=False)
class DPStandardScaler(_Preparing):
    """Express columns in private standard deviations from a private mean.

    Parameters
    ----------
    reach
        As for :class:`~cloister.tasks.preparation.standardise.Standardise`.
    epsilon, bounds, nominal_n, delta, ledger, dataset, frac_bits, max_loss
        As for every :class:`~cloister.estimators.base.PrivateEstimator`.

    Attributes
    ----------
    mean_, scale_ : ndarray of shape (n_used,), data units
        Of the columns of numbers. A scale is a deviation, or 1/256 of half the box where that is
        smaller.
    mean_interval_, scale_interval_ : ndarray of shape (n_used, 2)
        Ends of the 95 % intervals of the noise in mean and deviation.
    mean_population_interval_ : ndarray of shape (n_used, 2)
        Ends of the 95 % intervals of noise and sampling: of the mean where the records came from.

    Examples
    --------
    >>> import numpy as np
    >>> from cloister import DPStandardScaler
    >>> X = np.random.default_rng(0).normal(50, 5, (2000, 2))
    >>> model = DPStandardScaler(epsilon=1.0, bounds=(0, 100), nominal_n=2000).fit(X)
    >>> model.transform(X).shape
    (2000, 2)
    """

    _task: ClassVar[type[Task]] = Standardise

    reach: float = 4.0

    def _keep(self, result: Release) -> None:
        super()._keep(result)
        results = result.results
        self.mean_, self.scale_ = results["mean"], results["scale"]
        self.mean_interval_ = _ends(results, "mean", ("_low", "_high"))
        self.scale_interval_ = _ends(results, "deviation", ("_low", "_high"))
        self.mean_population_interval_ = _ends(results, "mean", ENDS)

    def inverse_transform(self, X: Any) -> Floats:
        """Return data units for columns that were scaled; other columns stay as they are."""
        return _unscaled(self, X, lambda values: values * self.scale_ + self.mean_)


@dataclass(kw_only=True, eq=False, repr=False)
class DPPCA(_Preparing):
    """Express records in their coordinates along private principal components.

    Columns of numbers are scaled by half their range first; each category of a schema counts 0 or
    1. A smaller `clip` makes less noise, and too small a one hides directions.

    Parameters
    ----------
    n_components, clip, reach, whiten
        As for :class:`~cloister.tasks.preparation.pca.PCA`.
    epsilon, bounds, nominal_n, delta, ledger, dataset, frac_bits, max_loss
        As for every :class:`~cloister.estimators.base.PrivateEstimator`.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_entries)
        Of columns scaled by half their range, and of categories.
    mean_ : ndarray of shape (n_entries,), in the same units
    explained_variance_, explained_variance_ratio_ : ndarray of shape (n_components,)
        In the squares of these units.
    explained_variance_interval_ : ndarray of shape (n_components, 2)
        Ends of intervals that hold for all components at once, with more than 95 % over the noise.
    scale_ : ndarray of shape (n_components,)
        What coordinates are divided by.

    Examples
    --------
    >>> import numpy as np
    >>> from cloister import DPPCA
    >>> X = np.random.default_rng(0).normal(0, 1, (2000, 1)) * [[1.0, 2.0, -1.0]]
    >>> model = DPPCA(1, epsilon=1.0, bounds=(-8, 8), nominal_n=2000).fit(X)
    >>> model.transform(X).shape
    (2000, 1)
    """

    _task: ClassVar[type[Task]] = PCA

    n_components: int = field(kw_only=False)
    clip: float = 0.3
    reach: float = 4.0
    whiten: bool = False

    def _keep(self, result: Release) -> None:
        super()._keep(result)
        names = ("mean", "components", "explained_variance", "explained_variance_ratio", "scale")
        self._set({f"{name}_": name for name in names})
        ends = _ends(result.results, "explained_variance", ("_low", "_high"))
        self.explained_variance_interval_ = ends

    def inverse_transform(self, X: Any) -> Floats:
        """Return data units, as far as the components hold them; for tables of numbers only."""
        if any(cast(PCA, self._fitted).categories):
            raise PlanError("inverse_transform is for tables of numbers, this one has categories.")
        scores = np.asarray(X, dtype=np.float64) * self.scale_
        return self.plan_.grid.decode(scores @ self.components_ + self.mean_)


def _ends(results: Mapping[str, Floats], name: str, ends: Sequence[str]) -> Floats:
    """Return both ends of the interval of each entry; shape (n_entries, 2)."""
    return np.stack([results[name + end] for end in ends], axis=1)


# Numbers about columns ----------------------------------------------------------------------------

_STATISTICS = ("mean", "variance", "deviation")


@dataclass(frozen=True)
class Summary(ReleasedModel):
    """Released numbers about columns, each with its 95 % confidence interval (privacy noise only).

    Parameters
    ----------
    result : Release
        Of the task "quantiles", "statistics" or "describe".

    Examples
    --------
    ``summary["mean"]`` is an array with a number for each column; ``summary["mean_low"]`` and
    ``summary["mean_high"]`` are the ends of the intervals; ``summary.to_frame()`` is a table.
    """

    def __getitem__(self, name: str) -> Floats:
        """Return a released array."""
        return self.result.results[name]

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that the numbers are about."""
        if isinstance(task := self.plan.task, Quantiles | Statistics):
            return tuple(self.plan.columns[j] for j in task.used)
        return self.plan.columns

    def to_frame(self) -> pd.DataFrame:
        """Return a row for each number of each column: value, low, high.

        Of a description it is a row for each number of its tables and pictures.
        """
        import pandas as pd

        task = self.plan.task
        if isinstance(task, Describe):
            return super().to_frame()
        ends = ("", "_low", "_high")
        names: Sequence[Any] = _STATISTICS
        kind = "statistic"
        if isinstance(task, Quantiles):
            kind, names = "probability", task.probabilities
            cells = np.stack([self[key] for key in ("quantiles", "low", "high")], axis=2)
        else:
            cells = np.array([[self[name + end] for name in names] for end in ends]).T
        index = pd.MultiIndex.from_product([self.columns, names], names=["column", kind])
        return pd.DataFrame(cells.reshape(-1, 3), index, ["value", "low", "high"])


def dp_quantiles(
    X: Any,
    probabilities: Sequence[float] = (0.25, 0.5, 0.75),
    *,
    epsilon: float,
    bounds: Any,
    refine: bool = True,
    nominal_n: int | None = None,
    delta: float | None = None,
    ledger: Ledger | str | Path | None = None,
    dataset: str | None = None,
    frac_bits: int = 16,
    max_loss: float | None = None,
) -> Summary:
    """Release quantiles of the columns of numbers of one table or of several silos.

    Parameters
    ----------
    X : array_like of shape (n_samples, n_features), DataFrame, path, or list of these
        A list is one silo each.
    probabilities : sequence of float in (0, 1)
    refine : bool
        As for :class:`DPBounds`.
    epsilon, bounds, nominal_n, delta, ledger, dataset, frac_bits, max_loss
        As for every :class:`~cloister.estimators.base.PrivateEstimator`.

    Returns
    -------
    Summary
        With ``["quantiles"]``, ``["low"]`` and ``["high"]`` of shape (n_used, n_probabilities);
        also the distribution: :class:`~cloister.tasks.preparation.quantiles.Quantiles`.

    Examples
    --------
    >>> import numpy as np
    >>> from cloister import dp_quantiles
    >>> X = np.random.default_rng(0).normal(50, 5, (5000, 1))
    >>> found = dp_quantiles(X, [0.5], epsilon=1.0, bounds=(0, 1000), nominal_n=5000)
    >>> bool(49 < found["quantiles"][0, 0] < 51)
    True
    """
    spending = BudgetParameters(
        epsilon, bounds, nominal_n, delta, ledger, dataset, frac_bits, max_loss
    )
    options: dict[str, Any] = {"probabilities": tuple(probabilities), "refine": refine}
    return Summary(release(Quantiles, read_silos(X, spending), spending, **options))


def dp_statistics(
    X: Any,
    *,
    epsilon: float,
    bounds: Any,
    covariance: bool = False,
    nominal_n: int | None = None,
    delta: float | None = None,
    ledger: Ledger | str | Path | None = None,
    dataset: str | None = None,
    frac_bits: int = 16,
    max_loss: float | None = None,
) -> Summary:
    """Release a count, and means and variances of the columns of numbers.

    Parameters
    ----------
    X : array_like of shape (n_samples, n_features), DataFrame, path, or list of these
        A list is one silo each.
    covariance : bool
        Whether covariances and correlations are released, too, from the same budget.
    epsilon, bounds, nominal_n, delta, ledger, dataset, frac_bits, max_loss
        As for every :class:`~cloister.estimators.base.PrivateEstimator`.

    Returns
    -------
    Summary
        With ``["count"]``, ``["mean"]``, ``["variance"]``, ``["deviation"]``, if asked for
        ``["covariance"]`` and ``["correlation"]``, and the ends of their intervals:
        :class:`~cloister.tasks.preparation.statistics.Statistics`.

    Examples
    --------
    >>> import numpy as np
    >>> from cloister import dp_statistics
    >>> X = np.random.default_rng(0).normal(50, 5, (5000, 2))
    >>> found = dp_statistics(X, epsilon=1.0, bounds=(0, 100), nominal_n=5000)
    >>> bool((found["mean_low"] < found["mean_high"]).all())
    True
    """
    spending = BudgetParameters(
        epsilon, bounds, nominal_n, delta, ledger, dataset, frac_bits, max_loss
    )
    return Summary(release(Statistics, read_silos(X, spending), spending, covariance=covariance))


def dp_describe(
    X: Any,
    *,
    epsilon: float,
    bounds: Any,
    probabilities: Sequence[float] = (0.25, 0.5, 0.75),
    nominal_n: int | None = None,
    delta: float | None = None,
    ledger: Ledger | str | Path | None = None,
    dataset: str | None = None,
    frac_bits: int = 16,
    max_loss: float | None = None,
) -> Summary:
    """Release what is in every column of one table or of several silos.

    Parameters
    ----------
    X, epsilon, bounds, nominal_n, delta, ledger, dataset, frac_bits, max_loss
        As for :func:`dp_quantiles`.
    probabilities : sequence of float in (0, 1)
        Of the quantiles.

    Returns
    -------
    Summary
        With the results of :class:`~cloister.tasks.tables.describe.Describe`.

    Examples
    --------
    >>> import numpy as np
    >>> from cloister import dp_describe
    >>> X = np.random.default_rng(0).normal(50, 5, (5000, 2))
    >>> found = dp_describe(X, epsilon=1.0, bounds=(0, 100), nominal_n=5000)
    >>> bool(49 < found.to_frame().loc[("All columns", "x0", "50 %"), "value"] < 51)
    True
    """
    spending = BudgetParameters(
        epsilon, bounds, nominal_n, delta, ledger, dataset, frac_bits, max_loss
    )
    options: dict[str, Any] = {"probabilities": tuple(probabilities)}
    return Summary(release(Describe, read_silos(X, spending), spending, **options))
