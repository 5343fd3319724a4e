"""Private bounds, scaling, principal components, and statistics of the columns of a table."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
from sklearn.base import TransformerMixin
from sklearn.utils.validation import check_is_fitted

from cloister.app.release import Release
from cloister.core.arrays import Floats
from cloister.core.dates import as_days
from cloister.core.display import ENDS
from cloister.core.errors import AccuracyWarning, PlanError
from cloister.estimators.base import PrivateEstimator
from cloister.estimators.release import BudgetParameters, ReleasedModel, release
from cloister.estimators.tables import read_new, read_silos, refuse_silos
from cloister.protocol.task import Task, Transformer
from cloister.tasks.columns import grid_of
from cloister.tasks.preparation.bounds import Bounds
from cloister.tasks.preparation.pca import PCA
from cloister.tasks.preparation.quantiles import Quantiles
from cloister.tasks.preparation.scaled import Scaled
from cloister.tasks.preparation.standardise import Standardise
from cloister.tasks.preparation.statistics import Statistics
from cloister.tasks.tables.comparison import MOST_NOISE
from cloister.tasks.tables.describe import Describe
from cloister.tasks.tables.table1 import Table1

if TYPE_CHECKING:
    import pandas as pd

    from cloister.privacy.ledger import Ledger


@dataclass(kw_only=True, eq=False, repr=False)
class _Preparing(TransformerMixin, PrivateEstimator):
    """A transformer of tables by the results of a fitted task."""

    @property
    def _fitted(self) -> Transformer:
        check_is_fitted(self)
        return cast(Transformer, self.plan_.task)

    def transform(self, X: Any) -> Floats:
        """Transform a table; local, at no cost.

        Parameters
        ----------
        X : array_like of shape (n_samples, n_features), DataFrame, or path with a schema

        Returns
        -------
        ndarray of shape (n_samples, n_features_out)
            Values are clipped to the public bounds first. With a schema, categories are their codes
            0, 1, 2, ...; an estimator with a schema as `bounds` encodes them itself. A record that
            a fit leaves out is NaN, as for scikit-learn, so that the next step leaves it out.

        Warns
        -----
        AccuracyWarning
            If codes of three or more categories would be taken as numbers.
        """
        task, grid = self._fitted, self.plan_.grid
        # On the grid, so that a table is transformed exactly as the silos transform it in a plan.
        values = read_new(self, X)[0]
        # A row of NaN keeps the positions of the others, so that labels still fit.
        kept = np.isfinite(values).all(axis=1)
        rows = task.transform(self.result_.results, grid.encode(values[kept]))
        if coded := [column.name for column in task.output if len(column.categories) > 2]:
            warnings.warn(
                f"Columns {coded} are codes of categories, which are no numbers; give the final "
                "estimator the table with its schema instead, or omit these columns.",
                AccuracyWarning,
                stacklevel=2,
            )
        found = np.full((len(values), len(task.output)), np.nan)
        found[kept] = grid_of(task.output, grid.frac_bits).decode(rows / grid.one)
        return found

    def fit_transform(self, X: Any, y: object = None, **parameters: Any) -> Floats:
        """Fit one table and return its :meth:`transform`."""
        # Before a fit is paid for whose table a pipeline cannot pass on.
        refuse_silos(X, "fit_transform, which a pipeline calls")
        rows: Floats = super().fit_transform(X, y, **parameters)
        return rows

    def get_feature_names_out(self, input_features: object = None) -> Any:
        """Return the names of the columns after the transformation."""
        return np.array([column.name for column in self._fitted.output], dtype=object)


def _unscaled(model: _Preparing, X: Any, undo: Callable[[Floats], Floats]) -> Floats:
    """Return the scaled columns in data units, and other columns unchanged."""
    values = np.array(X, dtype=np.float64)
    # Categories are not scaled.
    used = list(cast(Scaled, model._fitted).used)
    values[:, used] = undo(values[:, used])
    return values


@dataclass(kw_only=True, eq=False, repr=False)
class DPBounds(_Preparing):
    """Clip columns to two private quantiles and scale them to ``[-1, 1]``.

    The public bounds may be wide, but must not come from the records.

    Parameters
    ----------
    probabilities, refine
        As for :class:`~cloister.tasks.preparation.bounds.Bounds`; without `refine` a bound has the
        resolution of at most 1024 cells of the public box.
    epsilon, bounds, nominal_n, delta, ledger, dataset, frac_bits, max_loss
        As for every :class:`~cloister.estimators.base.PrivateEstimator`.

    Attributes
    ----------
    low_, high_ : ndarray of shape (n_used,), data units
        The private bounds of the numeric columns.
    low_interval_, high_interval_ : ndarray of shape (n_used, 2)
        Ends of an interval of each bound, with coverage of at least 95 % over the noise.

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
        # One row per column, as in scikit-learn's other attributes.
        ends = np.stack([results["low"], results["high"]], axis=2)
        self.low_interval_, self.high_interval_ = ends[:, 0], ends[:, 1]

    def inverse_transform(self, X: Any) -> Floats:
        """Return the scaled columns in data units, and other columns unchanged."""
        span = self.high_ - self.low_
        return _unscaled(self, X, lambda values: self.low_ + (values + 1) / 2 * span)


@dataclass(kw_only=True, eq=False, repr=False)
class DPStandardScaler(_Preparing):
    """Scale columns to private standard deviations from a private mean.

    Parameters
    ----------
    reach
        As for :class:`~cloister.tasks.preparation.standardise.Standardise`.
    epsilon, bounds, nominal_n, delta, ledger, dataset, frac_bits, max_loss
        As for every :class:`~cloister.estimators.base.PrivateEstimator`.

    Attributes
    ----------
    mean_, scale_ : ndarray of shape (n_used,), data units
        Mean and scale of the numeric columns. A scale is the deviation, but at least 1/256 of half
        the box.
    mean_interval_, scale_interval_ : ndarray of shape (n_used, 2)
        Ends of the 95 % intervals of mean and deviation, for the noise alone.
    mean_population_interval_ : ndarray of shape (n_used, 2)
        Ends of the 95 % intervals of the population mean, for noise and sampling.

    Examples
    --------
    >>> import numpy as np
    >>> from cloister import DPStandardScaler
    >>> X = np.random.default_rng(0).normal(50, 15, (2000, 2))
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
        """Return the scaled columns in data units, and other columns unchanged."""
        return _unscaled(self, X, lambda values: values * self.scale_ + self.mean_)


@dataclass(kw_only=True, eq=False, repr=False)
class DPPCA(_Preparing):
    """Transform records to coordinates along private principal components.

    Numeric columns are first scaled by half their range, and each category of a schema becomes a
    column of 0 and 1. Records are shortened to a radius for the components, but not for the
    variances. A noisy histogram of distances gives the radius, at most `clip`.

    Parameters
    ----------
    n_components, clip, reach, whiten
        As for :class:`~cloister.tasks.preparation.pca.PCA`.
    epsilon, bounds, nominal_n, delta, ledger, dataset, frac_bits, max_loss
        As for every :class:`~cloister.estimators.base.PrivateEstimator`.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_entries)
        Components of the scaled columns and the categories.
    mean_ : ndarray of shape (n_entries,), in the same units
    explained_variance_, explained_variance_ratio_ : ndarray of shape (n_components,)
        Variances in the squares of these units, with the divisor n - 1, and their shares.
    explained_variance_interval_, explained_variance_ratio_interval_ : ndarray
        Ends of the 95 % intervals over the noise, of shape (n_components, 2). They hold the
        values of scikit-learn's ``PCA`` on the same scaled records.
    scale_ : ndarray of shape (n_components,)
        Divisors of the coordinates.

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
    clip: float = 2.0
    reach: float = 4.0
    whiten: bool = False

    def _keep(self, result: Release) -> None:
        super()._keep(result)
        names = ("mean", "components", "explained_variance", "explained_variance_ratio", "scale")
        self._set({f"{name}_": name for name in names})
        results, ends = result.results, ("_low", "_high")
        self.explained_variance_interval_ = _ends(results, "explained_variance", ends)
        self.explained_variance_ratio_interval_ = _ends(results, "explained_variance_ratio", ends)

    def inverse_transform(self, X: Any) -> Floats:
        """Return the approximation by the components, data units; only for tables of numbers."""
        if any(cast(PCA, self._fitted).categories):
            raise PlanError(
                "inverse_transform needs a model of numeric columns only, but this one has "
                "categories; fit without them."
            )
        scores = np.asarray(X, dtype=np.float64) * self.scale_
        return self.plan_.grid.decode(scores @ self.components_ + self.mean_)


def _ends(results: Mapping[str, Floats], name: str, ends: Sequence[str]) -> Floats:
    """Return both ends of the interval of each entry; shape (n_entries, 2)."""
    return np.stack([results[name + end] for end in ends], axis=1)


# Statistics of columns ----------------------------------------------------------------------------

_STATISTICS = ("mean", "variance", "deviation")


@dataclass(frozen=True)
class Summary(ReleasedModel):
    """Released statistics of columns, with 95 % confidence intervals (privacy noise only).

    Parameters
    ----------
    result : Release
        Release of the task "quantiles", "statistics", "describe" or "table1".

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
        """Names of the columns with statistics."""
        if isinstance(task := self.plan.task, Quantiles | Statistics):
            return tuple(self.plan.columns[j] for j in task.used)
        return self.plan.columns

    def to_frame(self, title: str | None = None) -> pd.DataFrame:
        """Return one row for each statistic of each column: value, low, high.

        For "describe" and "table1" it is one row for each number of tables and charts. With the
        title of one of them, such as "All columns", it is this table with texts.
        """
        import pandas as pd

        task = self.plan.task
        # A description has several tables with different columns.
        if title is not None or isinstance(task, Describe | Table1):
            return super().to_frame(title)
        ends = ("", "_low", "_high")
        # The covariance is a matrix, so it does not fit into this table.
        names: Sequence[Any] = _STATISTICS
        kind = "statistic"
        if isinstance(task, Quantiles):
            kind, names = "probability", task.probabilities
            cells = np.stack([self[key] for key in ("quantiles", "low", "high")], axis=2)
        else:
            cells = np.array([[self[name + end] for name in names] for end in ends]).T
        index = pd.MultiIndex.from_product([self.columns, names], names=["column", kind])
        frame = pd.DataFrame(cells.reshape(-1, 3), index, ["value", "low", "high"])
        of_dates: Sequence[int] = getattr(task, "dates", ())
        dates = index.isin([self.plan.columns[j] for j in of_dates], level=0)
        if not dates.any():
            return frame
        # A deviation of dates is a number of years.
        place = dates & index.isin(names if kind == "probability" else ["mean"], level=1)
        days = [
            as_days(row) if is_day else row
            for row, is_day in zip(cells.reshape(-1, 3), place, strict=True)
        ]
        return pd.DataFrame(days, index, frame.columns, dtype=object)


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
    """Release quantiles of the numeric columns of one table or of several silos.

    Parameters
    ----------
    X : array_like of shape (n_samples, n_features), DataFrame, path, or list of these
        A list has one element per silo.
    probabilities : sequence of float in (0, 1)
    refine : bool
        As for :class:`DPBounds`.
    epsilon, bounds, nominal_n, delta, ledger, dataset, frac_bits, max_loss
        As for every :class:`~cloister.estimators.base.PrivateEstimator`.

    Returns
    -------
    Summary
        ``["quantiles"]``, ``["low"]`` and ``["high"]`` have shape (n_used, n_probabilities). For
        the distribution see :class:`~cloister.tasks.preparation.quantiles.Quantiles`.

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
    """Release the count, and the means and variances of the numeric columns.

    Parameters
    ----------
    X : array_like of shape (n_samples, n_features), DataFrame, path, or list of these
        A list has one element per silo.
    covariance : bool
        If True, covariances and correlations are also released, from the same budget.
    epsilon, bounds, nominal_n, delta, ledger, dataset, frac_bits, max_loss
        As for every :class:`~cloister.estimators.base.PrivateEstimator`.

    Returns
    -------
    Summary
        ``["count"]``, ``["mean"]``, ``["variance"]``, ``["deviation"]``, with `covariance` also
        ``["covariance"]`` and ``["correlation"]``, and the ends of their intervals; see
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
    """Release a description of every column of one table or of several silos.

    Parameters
    ----------
    X, epsilon, bounds, nominal_n, delta, ledger, dataset, frac_bits, max_loss
        As for :func:`dp_quantiles`.
    probabilities : sequence of float in (0, 1)
        Probabilities of the quantiles.

    Returns
    -------
    Summary
        The results of :class:`~cloister.tasks.tables.describe.Describe`.

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


def dp_table1(
    X: Any,
    by: str | None = None,
    *,
    epsilon: float,
    bounds: Any,
    medians: bool = False,
    correlations: bool = False,
    most_noise: float = MOST_NOISE,
    nominal_n: int | None = None,
    delta: float | None = None,
    ledger: Ledger | str | Path | None = None,
    dataset: str | None = None,
    frac_bits: int = 16,
    max_loss: float | None = None,
) -> Summary:
    """Release every column by group, with differences to the first group and tests.

    Parameters
    ----------
    X, epsilon, bounds, nominal_n, delta, ledger, dataset, frac_bits, max_loss
        As for :func:`dp_quantiles`; categories need a schema.
    by : str, optional
        The column whose categories are the groups.
    medians, correlations : bool
        If True, quartiles by group or correlations are also released, from the same budget.
    most_noise : float
        Largest deviation of the noise of a standardised difference.

    Returns
    -------
    Summary
        The results of :class:`~cloister.tasks.tables.table1.Table1`.

    Examples
    --------
    >>> import numpy as np
    >>> import pandas as pd
    >>> from cloister import Schema, dp_table1
    >>> rng = np.random.default_rng(0)
    >>> people = pd.DataFrame({"arm": [0, 1] * 2000, "age": rng.normal(50, 9, 4000).clip(0, 100)})
    >>> people.loc[people["arm"] == 1, "age"] += 5
    >>> columns = [{"name": "arm", "type": "boolean"},
    ...            {"name": "age", "type": "number", "min": 0, "max": 110}]
    >>> schema = Schema(dataset="trial", unit="row", columns=columns)
    >>> found = dp_table1(people, "arm", epsilon=1.0, bounds=schema, nominal_n=4000)
    >>> bool(found["welch_p"][0] < 0.001)
    True
    """
    spending = BudgetParameters(
        epsilon, bounds, nominal_n, delta, ledger, dataset, frac_bits, max_loss
    )
    options: dict[str, Any] = {"by": by, "medians": medians, "correlations": correlations}
    options["most_noise"] = most_noise
    return Summary(release(Table1, read_silos(X, spending), spending, **options))
