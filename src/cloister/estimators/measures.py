"""``evaluate`` and ``cluster_quality``: private measures of a model on the records of silos."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from cloister.core.arrays import Floats
from cloister.core.display import ENDS, Display, Estimate
from cloister.core.errors import DataError, PlanError, PrivacyWarning, choosing
from cloister.data import Labelled, as_silos, is_frame, read_floats
from cloister.data.loss import warn_owner
from cloister.data.reading import CLIPPED_SHARE
from cloister.data.schema import Column, Schema
from cloister.estimators.ensemble import DPSiloEnsemble, combined_probabilities
from cloister.estimators.forest import best_class
from cloister.estimators.record_functions import frame_by_frame, one_by_one, record_functions
from cloister.estimators.release import BudgetParameters, ReleasedModel, release
from cloister.estimators.tables import (
    SiloData,
    by_schema,
    category_column,
    class_categories,
    grid_rows,
    label_parts,
    read_labelled,
    read_silos,
    row_table,
    unpaired,
)
from cloister.protocol.task import Classifier, Regressor, Task
from cloister.tasks.evaluation.classification import Evaluation
from cloister.tasks.evaluation.cluster_quality import ClusterQuality
from cloister.tasks.evaluation.regression import RegressionEvaluation
from cloister.tasks.interval_tables import number_of

if TYPE_CHECKING:
    import pandas as pd

    from cloister.app.release import Release
    from cloister.privacy.ledger import Ledger

_LOW, _HIGH = "_low", "_high"
_ASSUMED = (
    "The guarantee assumes that the model's prediction of a record is a function of that record "
    "alone."
)


@dataclass(frozen=True)
class Measures(ReleasedModel):
    """Released measures of a model, each with its 95 % confidence interval (privacy noise only).

    Parameters
    ----------
    result : Release
    scored_by : {"plan", "row code", "assumed"}
        Origin of the predictions. "plan": the silos, with a model of this package in the plan.
        "row code": this package's code for a known class of model, a function of each record alone.
        "assumed": the model's own code, called with one record at a time. The guarantee then
        assumes that its prediction is a function of the record alone.

    Examples
    --------
    ``measures["auc"]`` is the value with its interval, and ``measures.confusion`` the noisy matrix.
    ``measures.to_frame()`` is a table, and ``measures.displays()`` are the displays of a report.
    """

    scored_by: Literal["plan", "row code", "assumed"] = "plan"

    def __getitem__(self, name: str) -> Estimate:
        """Return a measure by its name in :meth:`to_frame`, such as "auc" or "recall[0]"."""
        if name not in self._rows:
            raise KeyError(f"{name!r} must be one of {list(self._rows)}")
        return number_of(self.result.results, *self._rows[name])

    @property
    def _rows(self) -> dict[str, tuple[str, int]]:
        """The result and the place in it of each row of :meth:`to_frame`, by its name."""
        sizes = {name: self.result.results[name].size for name in self.names}
        return {
            name if size == 1 else f"{name}[{i}]": (name, i)
            for name, size in sizes.items()
            for i in range(size)
        }

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all released measures with an interval."""
        results = self.result.results
        return tuple(n for n in results if n + _LOW in results and n + _HIGH in results)

    @property
    def confusion(self) -> Floats:
        """Noisy confusion matrix, truth by prediction; shape (n_classes, n_classes)."""
        return self.result.results["confusion"]

    def displays(self) -> tuple[Display, ...]:
        """Return the tables and charts: confusion matrix, ROC curve, calibration."""
        first, *rest = super().displays()
        if self.scored_by == "assumed":  # every report must state the assumption
            first = replace(first, note=f"{first.note} {_ASSUMED}")
        return (first, *rest)

    def to_frame(self, title: str | None = None) -> pd.DataFrame:
        """Return all measures, with one row for each class or silo.

        The columns are ``value``, ``low`` and ``high`` of the noise interval, ``population_low``
        and ``population_high``. With the title of a display, it is its table of texts, which has
        the places of points such as ``roc_tpr[3]`` and groups such as ``calibration_observed[3]``.
        """
        import pandas as pd

        if title is not None:
            return super().to_frame(title)
        results, rows = self.result.results, []
        for row, (name, i) in self._rows.items():
            parts = (results.get(name + end) for end in ("", _LOW, _HIGH, *ENDS))
            rows.append((row, *(np.nan if part is None else part.flat[i] for part in parts)))
        heads = ["measure", "value", *(end[1:] for end in (_LOW, _HIGH, *ENDS))]
        return pd.DataFrame(rows, columns=heads).set_index("measure")


def evaluate(
    model: Any = None,
    X: Any = None,
    y: Any = None,
    *,
    epsilon: float,
    classes: Sequence[Any] | None = None,
    target_bounds: tuple[float, float] | None = None,
    bounds: Schema | None = None,
    target: str | None = None,
    unit: str | None = None,
    max_rows: int | None = None,
    nominal_n: int | None = None,
    delta: float | None = None,
    ledger: Ledger | str | Path | None = None,
    dataset: str | None = None,
    frac_bits: int = 16,
    max_loss: float | None = None,
    predictions: Any = None,
    scores: Any = None,
    truth: Any = None,
    **options: Any,
) -> Measures:
    """Release private measures of a model on new records, under a separate budget.

    Parameters
    ----------
    model : estimator or None
        A fitted classifier or regressor of this package, which becomes part of the plan. Or any
        other fitted model with `predict_proba` or `predict`, which every silo must have. Its
        prediction of a record must be a function of that record alone: see `scored_by` of
        :class:`Measures`. :func:`~.estimators.record_functions.record_functions` lists the classes
        with a proof.
    X : array_like of shape (n_samples, n_features), DataFrame, path, or list of these
        New records; a list has one element per silo, and may have pairs (X, y) without `y`. A path
        is possible only for a model of this package.
    y : array_like of shape (n_samples,), list of these, or None
        The truth. None if X has it in the column `target`.
    classes, target_bounds : sequence, (low, high), optional
        Public labels, or bounds of the truth of a regressor; by default those of the model or the
        schema.
    bounds, target : Schema, str, optional
        The schema of X, and its column with the truth; by default those of a model of this package.
    unit, max_rows : str, int, optional
        Without a schema: the column of a DataFrame with the privacy unit of a record, and the
        maximum number of records of one unit at each silo. By default each record is a unit.
    epsilon, nominal_n, delta, ledger, dataset, frac_bits, max_loss
        As for every :class:`~cloister.estimators.base.PrivateEstimator`.
    predictions, scores, truth : array_like of shape (n_samples,), or lists of these
        Instead of `model`, `X` and `y`: the predictions of a model and the truth; with public
        `classes`, or `target_bounds` for numbers. Instead of labels, `scores` are probabilities of
        the last of two classes, for the area under the ROC curve. A list has one element per silo.
    options
        Further options of the task: `n_bins`, `bound`, `by_silo`; see the tasks "evaluation" and
        "regression-evaluation".

    Warns
    -----
    PrivacyWarning
        If the class of the model is not known.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import LogisticRegression
    >>> from cloister import evaluate
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(4000, 2))
    >>> y = (X[:, 0] + rng.normal(size=4000) > 0).astype(int)
    >>> model = LogisticRegression().fit(X[:2000], y[:2000])
    >>> found = evaluate(model, X[2000:], y[2000:], epsilon=1.0, nominal_n=2000)
    >>> bool(found["auc"].low < found["auc"].value < found["auc"].high)
    True
    """
    spending = BudgetParameters(
        epsilon, bounds, nominal_n, delta, ledger, dataset, frac_bits, max_loss
    )
    answers = [one for one in (predictions, scores) if one is not None]
    if answers or truth is not None:
        only_these = all(argument is None for argument in (model, X, y))
        if len(answers) != 1 or truth is None or not only_these:
            raise PlanError(
                "predictions or scores, with truth, replace model, X and y; give truth and one of "
                "them, or model, X and y."
            )
        if scores is not None and (classes is None or len(classes) != 2):
            raise PlanError(f"classes must have two labels for scores, got {classes}.")
        (X,), y = answers, truth
    X, y = unpaired(X, y)
    task = getattr(getattr(model, "plan_", None), "task", None)
    ours = isinstance(task, Classifier | Regressor)
    # Two definitions of the unit could contradict each other.
    if (unit, max_rows) != (None, None) and (ours or bounds is not None):
        raise PlanError("unit and max_rows are those of the schema; omit them.")
    if isinstance(task, Classifier | Regressor):
        about = {"target": target, "classes": classes, "target_bounds": target_bounds}
        return _evaluate_ours(model, task, (X, y), about, spending, options)
    contract = _Contract(bounds, target, unit, max_rows, classes, target_bounds)
    if model is None:
        silos = _predicted(X, y)
        ready = _Predictions(classes, scores is not None)
        return _evaluate_other(ready, silos, contract, spending, options)
    if not hasattr(model, "predict"):
        raise PlanError(
            f"model must be a fitted classifier or regressor, got {type(model).__name__}."
        )
    return _evaluate_other(model, contract.silos(model, X, y), contract, spending, options)


def _predicted(predictions: Any, truth: Any) -> list[_Silo]:
    """Return the silos' data for given predictions."""
    # A list of numbers is one silo, a list of arrays several.
    many = isinstance(predictions, list | tuple) and any(np.ndim(p) == 1 for p in predictions)
    by_silo = list(predictions) if many else [predictions]
    truths = label_parts(truth, len(by_silo))
    pairs = zip(by_silo, truths, strict=True)
    silos = [_Silo(Labelled(None, "prediction", p), t) for p, t in pairs]
    for silo in silos:
        if len(silo.table.column) != len(Labelled(None, "truth", silo.truth).column):
            raise DataError("every silo must have one label for each record; check predictions.")
    return silos


def _evaluate_ours(
    model: Any,
    task: Classifier | Regressor,
    pair: tuple[Any, Any],
    about: dict[str, Any],
    spending: BudgetParameters,
    options: dict[str, Any],
) -> Measures:
    """Evaluate a released model of this package, which the plan contains and the silos apply."""
    spending = replace(
        spending,
        # The model was released on this grid.
        frac_bits=task.frac_bits,
        dataset=spending.dataset or getattr(model, "dataset", None),
        bounds=model.bounds if spending.bounds is None else spending.bounds,
    )
    at, grid = task.target, model.plan_.grid
    if (schema := spending.schema) and set(model.plan_.columns) <= set(schema.names):
        spending = replace(spending, columns=model.plan_.columns)
    defaults = {"target": getattr(model, "_scored_target", getattr(model, "target", None))}
    if isinstance(task, Classifier):
        about, defaults["classes"] = {**about, "target_bounds": None}, model.classes_
    else:
        defaults["target_bounds"] = (grid.low[at], grid.high[at])
    about = {k: defaults.get(k) if value is None else value for k, value in about.items()}
    columns = [name for j, name in enumerate(model.plan_.columns) if j != at]
    named = None if columns == [f"x{j}" for j in range(len(columns))] else columns
    data = read_labelled(*pair, spending, **about, names=named)
    # Other columns or bounds would give the model other numbers.
    used = data.schema.select(spending.columns) if spending.columns else data.schema
    if used.names != model.plan_.columns or used.grid(task.frac_bits) != grid:
        raise DataError(
            f"columns must be those of the model's fit, {list(model.plan_.columns)}, with the same "
            f"bounds, got {list(data.schema.names)}."
        )
    kind = Evaluation if isinstance(task, Classifier) else RegressionEvaluation
    released = model.result_.results
    return Measures(_released(kind, data, spending, model=task, released=released, **options))


def _evaluate_other(
    model: Any,
    silos: list[_Silo],
    contract: _Contract,
    spending: BudgetParameters,
    options: dict[str, Any],
) -> Measures:
    """Evaluate another model, with which each silo scores its records before they are read."""
    predictors = _Predictors.of(model)
    bounds = contract.bounds_of_truth(model)
    if bounds is None:
        kind: type[Task] = Evaluation
        labels = np.asarray(model.classes_ if contract.classes is None else contract.classes)
        columns, answers = _labelled(predictors, silos, labels)
    else:
        kind = RegressionEvaluation
        truth = Column(name="truth", type="number", min=bounds[0], max=bounds[1])
        columns = (truth, truth.model_copy(update={"name": "prediction"}))
        answers = [predictors.numbers(silo.table) for silo in silos]
    schema = contract.schema(columns, spending.dataset)
    tables = [_read_by(schema, silo, cells) for silo, cells in zip(silos, answers, strict=True)]
    data = SiloData(schema, by_schema(tables, schema, spending))
    if not predictors.by_record:
        _warn_assumed(model)
    names: dict[str, Any] = {"truth": schema.names[0], columns[1].name: schema.names[1]}
    result = _released(kind, data, spending, **names, **options)
    return Measures(result, "row code" if predictors.by_record else "assumed")


def _released(
    kind: type[Task], data: SiloData, spending: BudgetParameters, **options: Any
) -> Release:
    """Release measures; warn the owner if many residuals are clipped to a bound that was given."""
    found = release(kind, data, spending, **options)
    task = found.plan.task
    if isinstance(task, RegressionEvaluation) and options.get("bound") is not None:
        parts = (part for records in data.records.values() for part in records)
        counts = [(task.clipped(part), len(part)) for part in parts]
        share = sum(clipped for clipped, _ in counts) / max(sum(n for _, n in counts), 1)
        if share > CLIPPED_SHARE:
            warn_owner(
                f"{share:.1%} of the residuals are clipped to the bound {task.bound:g}, so errors "
                "are too small; give a larger bound from public knowledge."
            )
    return found


def _warn_assumed(model: Any) -> None:
    given = isinstance(model, _Predictions)
    kind = "not given" if given else f"a {type(model).__name__}"
    slow = (
        " Such a model is called for each record; if that is slow, give predictions or scores "
        "instead of the model."
    )
    warnings.warn(
        f"model is {kind}, so it cannot be proven that its prediction of a record is a function of "
        f"that record alone; the guarantee assumes it.{'' if given else slow}",
        PrivacyWarning,
        # The line of the user's call.
        stacklevel=4,
    )


def _labelled(
    predictors: _Predictors, silos: list[_Silo], labels: np.ndarray
) -> tuple[tuple[Column, Column], list[Any]]:
    """Return the columns of a classifier's truth and prediction, and each silo's predictions."""
    truth = category_column("truth", class_categories(labels))
    # The scores of two classes give more measures, such as the ROC curve.
    if len(labels) == 2 and predictors.scores:
        answer = Column(name="score", type="number", min=0.0, max=1.0)
        return (truth, answer), [predictors.scores(silo.table) for silo in silos]
    answer = truth.model_copy(update={"name": "prediction"})
    return (truth, answer), [predictors.labels(silo.table) for silo in silos]


@dataclass(frozen=True)
class _Predictions:
    """The model of a table whose only column contains predictions, or scores of the last class."""

    classes_: Any
    are_scores: bool

    def predict(self, table: Any) -> Any:
        """Return the column."""
        return table.column


@dataclass(frozen=True)
class _Silo:
    """The data of a silo: a table for the model, the truth, and the privacy unit of each record."""

    table: Any
    truth: Any  # unchanged cells
    units: Any = None


@dataclass(frozen=True)
class _Contract:
    """The public parameters of the records on which another model is evaluated."""

    bounds: Schema | None
    target: str | None
    unit: str | None
    max_rows: int | None
    classes: Any = None
    target_bounds: Any = None

    def __post_init__(self) -> None:
        # Plain bounds have no categories for the truth.
        if self.bounds is not None and not isinstance(self.bounds, Schema):
            raise PlanError(f"bounds must be a Schema, got {type(self.bounds).__name__}.")
        # Raises for an invalid unit or max_rows before any prediction is made.
        self.schema([Column(name="truth", type="boolean", min=0.0, max=1.0)], None)

    @property
    def unit_column(self) -> str | None:
        """The column of the privacy unit."""
        if self.bounds is not None:
            return self.bounds.unit_column
        return None if self.unit == "row" else self.unit

    def bounds_of_truth(self, model: Any) -> tuple[float, float] | None:
        """Return the public bounds of a regressor's target, or None for a classifier."""
        columns = self.bounds.columns if self.bounds else ()
        column = next((c for c in columns if c.name == self.target and not c.categories), None)
        bounds = self.target_bounds
        if bounds is None and not hasattr(model, "classes_") and column:
            bounds = (column.min, column.max)
        if bounds is None and getattr(model, "classes_", None) is None:
            raise PlanError(
                "target_bounds are required: two public bounds of the truth; for labels give "
                f"classes instead{choosing('bounds')}."
            )
        return None if bounds is None else (float(bounds[0]), float(bounds[1]))

    def silos(self, model: Any, X: Any, y: Any) -> list[_Silo]:
        """Return the data of each silo; its table has the columns that the model uses."""
        silos = as_silos(X)
        tables = [row_table(silo) for silo in silos]
        if any(len(getattr(table, "shape", ())) != 2 for table in tables):
            raise DataError(
                "X must be a table in memory, or a list of these, for a model of another package; "
                "read a file with pandas."
            )
        truths = [None] * len(tables) if y is None else label_parts(y, len(tables))
        wanted = self._features(model, tables[0])
        return [
            self._silo(model, i, table, truth, wanted)
            for i, (table, truth) in enumerate(zip(tables, truths, strict=True))
        ]

    def _silo(self, model: Any, i: int, table: Any, truth: Any, wanted: list[str]) -> _Silo:
        named = is_frame(table)
        others = [name for name in (self.unit_column, self.target) if name is not None]
        if not named and (others or self.bounds is not None):
            raise DataError("X must be a DataFrame, since unit, target or a schema name columns.")
        if truth is None and self.target is None:
            raise DataError(
                "give y for a model of another package, or target and a table with this column."
            )
        if named != bool(wanted):
            raise DataError(
                f"silo {i} must have column names if and only if the other silos have; give all "
                "silos as DataFrames, or all as arrays."
            )
        needed = [self.unit_column, self.target if truth is None else None, *wanted]
        available = _names(table) if named else []
        if absent := [
            name for name in needed if name is not None and name not in available and named
        ]:
            raise DataError(f"X of silo {i} has no column {absent[0]!r}; add it, or name another.")
        truth = table[self.target] if truth is None else truth
        if len(table) != len(Labelled(None, "truth", truth).column):
            raise DataError("every silo must have one label for each record; check y.")
        units = None if self.unit_column is None else table[self.unit_column]
        features = table.select(wanted) if hasattr(table, "select") else table
        return _Silo(features[wanted] if named and features is table else features, truth, units)

    def _features(self, model: Any, table: Any) -> list[str]:
        """Return the names of the columns that the model uses, the same in every silo.

        The list is empty if the first silo is an array; columns are then matched by position.
        """
        if not is_frame(table):
            return []
        fitted = getattr(model, "feature_names_in_", None)
        if fitted is not None:
            return [str(name) for name in fitted]
        others = (self.unit_column, self.target)
        wanted = self.bounds.names if self.bounds else _names(table)
        return [name for name in wanted if name not in others]

    def schema(self, columns: Sequence[Column], dataset: str | None) -> Schema:
        """Return the schema of the columns to read: truth and prediction."""
        unit = self.unit_column
        # A unit column may have the name of one of these.
        columns = [
            c.model_copy(update={"name": f"the {c.name}"}) if c.name == unit else c for c in columns
        ]
        common: dict[str, Any] = {"columns": tuple(columns)}
        if self.bounds is None:
            common |= {"unit": self.unit or "row", "max_rows": self.max_rows}
            return Schema(dataset=dataset or "unnamed", **common)
        return Schema(**{**dict(self.bounds), **common})


@dataclass(frozen=True)
class _Predictors:
    """The functions that predict a table with a model."""

    by_record: bool  # by this package's code, with a proof that each record counts alone
    scores: Callable[[Any], Floats] | None  # of the last of two classes
    labels: Callable[[Any], np.ndarray]
    numbers: Callable[[Any], Floats]

    @classmethod
    def of(cls, model: Any) -> Self:
        """Return this package's code for a known class of model, else calls for each record."""
        proba = hasattr(model, "predict_proba")
        # Exactly this class: a subclass may predict otherwise.
        if type(model) is DPSiloEnsemble:
            return cls(True, *_of_ensemble(model))
        if type(model) is _Predictions:
            scores = model.predict if model.are_scores else None
            return cls(False, scores, model.predict, model.predict)
        if code := record_functions(model):
            rows = partial(_rows, code.n_features)
            # The last is the label of a row without scores.
            classes = np.array([*np.asarray(getattr(model, "classes_", ())).tolist(), None], object)
            return cls(
                True,
                (lambda table: code(rows(table))[:, 1]) if proba else None,
                lambda table: classes[code.labels(rows(table))],
                lambda table: code(rows(table))[:, 0],
            )
        return cls(
            False,
            (lambda table: _predict(model.predict_proba, table, (0, 2))[:, 1]) if proba else None,
            lambda table: _predict(model.predict, table, (0,)),
            lambda table: _predict(model.predict, table, (0,)),
        )


def _rows(n_features: int, table: Any) -> Floats:
    """Return a table as numbers, NaN for other cells."""
    rows = read_floats(table)
    # The scoring code would read other features.
    if rows.shape[1] != n_features:
        raise DataError(f"X must have the model's {n_features} columns, got {rows.shape[1]}.")
    return rows


def _predict(predict: Callable[[Any], Any], table: Any, empty: tuple[int, ...]) -> np.ndarray:
    """Return a model's predictions, with one call for each record."""
    if not len(table):
        return np.zeros(empty)
    if hasattr(table, "columns"):
        return frame_by_frame(predict, table)
    rows = np.asarray(table)
    # The type of an array may depend on other records: on the longest text, or on a missing cell
    # among integers.
    return one_by_one(predict, rows.astype(np.float64 if rows.dtype.kind in "biuf" else object))


def _of_ensemble(model: DPSiloEnsemble) -> tuple[Callable[[Any], Any], ...]:
    """Return functions for scores and labels of an ensemble, with one call for each record."""
    first, k = model.models_[0], len(model.classes_)

    def shares(record: Any) -> Floats:
        return combined_probabilities(
            [fitted.result_ for fitted in model.models_],
            record,
            weights=model.weights_.tolist(),
            combine=model.combine,
        )

    def each(predict: Callable[[Any], Any], empty: tuple[int, ...], table: Any) -> np.ndarray:
        records = grid_rows(first, table)
        return one_by_one(predict, records) if len(records) else np.zeros(empty)

    def labels(table: Any) -> np.ndarray:
        best = each(lambda record: best_class(shares(record), model.costs), (0,), table)
        return np.asarray(model.classes_)[best.astype(np.int64)]

    return lambda table: each(shares, (0, k), table)[:, 1], labels, labels


def _names(table: Any) -> list[Any]:
    """Return the names of a frame's columns."""
    return list(table.column_names if hasattr(type(table), "column_names") else table.columns)


def _read_by(schema: Schema, silo: _Silo, answers: Any) -> Any:
    """Return truths and predictions as a table for the schema."""
    truth, answer = schema.names
    column = Labelled(None, answer, answers).column
    if silo.units is None:
        cells = column.tolist() if hasattr(column, "tolist") else list(column)
        return Labelled([[cell] for cell in cells], truth, silo.truth)
    import pandas as pd

    units = Labelled(None, "unit", silo.units).column
    units = units.to_list() if hasattr(units, "to_list") else list(units)
    # As objects, because pandas would choose the type of a column by all of its cells.
    predictions = {answer: pd.Series(list(column), dtype=object)}
    table = pd.DataFrame({**predictions, schema.unit: pd.Series(units, dtype=object)})
    return Labelled(table, truth, silo.truth)


def cluster_quality(
    centres: Any,
    X: Any,
    *,
    epsilon: float,
    bounds: Any = None,
    nominal_n: int | None = None,
    delta: float | None = None,
    ledger: Ledger | str | Path | None = None,
    dataset: str | None = None,
    frac_bits: int = 16,
    max_loss: float | None = None,
    n_bins: int = 20,
) -> Measures:
    """Release private measures of centres on records, under a separate budget.

    Parameters
    ----------
    centres : estimator or array_like of shape (n_clusters, n_features), data units
        A fitted ``DPKMeans``, or public centres.
    X : array_like of shape (n_samples, n_features), DataFrame, path, or list of these
        A list has one element per silo.
    bounds : (low, high) or Schema
        Public bounds; by default those of the estimator.
    epsilon, nominal_n, delta, ledger, dataset, frac_bits, max_loss
        As for every :class:`~cloister.estimators.base.PrivateEstimator`.
    n_bins : int, >= 2
        Number of bins of the histogram of silhouettes.

    Returns
    -------
    Measures
        ``nicv``, ``silhouette`` and ``davies_bouldin``; see
        :class:`~cloister.tasks.evaluation.cluster_quality.ClusterQuality`.

    Examples
    --------
    >>> import numpy as np
    >>> from cloister import cluster_quality
    >>> X = np.random.default_rng(0).normal([[0.0], [8.0]], 1, (2, 500)).reshape(-1, 1)
    >>> found = cluster_quality([[0.0], [8.0]], X, epsilon=1.0, bounds=(-5, 15), nominal_n=1000)
    >>> bool(found["silhouette"].value > 0.5)
    True
    """
    values = getattr(centres, "cluster_centers_", centres)
    if bounds is None:
        bounds = getattr(centres, "bounds", None)
    spending = BudgetParameters(
        epsilon, bounds, nominal_n, delta, ledger, dataset, frac_bits, max_loss
    )
    options: dict[str, Any] = {"centres": np.asarray(values), "n_bins": n_bins}
    data = read_silos(X, spending, names=getattr(centres, "feature_names_in_", None))
    return Measures(release(ClusterQuality, data, spending, **options))
