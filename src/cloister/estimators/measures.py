"""``evaluate`` and ``cluster_quality``: how good a model is on records that stay where they are."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from cloister.core.arrays import Floats
from cloister.core.display import Display
from cloister.core.errors import DataError, PlanError, PrivacyWarning
from cloister.core.estimate import ENDS, Estimate
from cloister.data import Labelled, as_silos, is_frame, read_floats
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

    from cloister.privacy.ledger import Ledger

_LOW, _HIGH = "_low", "_high"
_ASSUMED = (
    "The guarantee assumes that the model's answer to a record is a function of that record alone."
)


@dataclass(frozen=True)
class Measures(ReleasedModel):
    """Released measures of a model, each with its 95 % confidence interval (privacy noise only).

    Parameters
    ----------
    result : Release
    scored_by : {"plan", "row code", "assumed"}
        Who predicted. "plan": the silos, with a model of ours that the plan holds. "row code": our
        own code for a model whose class we know, a function of each record by itself. "assumed":
        the model's own code, asked about one record at a time; that it is a function of the record
        is assumed, and so is the guarantee.

    Examples
    --------
    ``measures["auc"]`` is the value with both ends of its interval; ``measures.confusion`` the
    noisy matrix; ``measures.to_frame()`` a table; ``measures.displays()`` what a report shows.
    """

    scored_by: Literal["plan", "row code", "assumed"] = "plan"

    def __getitem__(self, name: str) -> Estimate:
        """Return a measure of the whole model; a KeyError if each class has one of its own."""
        found = self.result.results
        if name not in found or f"{name}{_LOW}" not in found or found[name].size != 1:
            raise KeyError(name)
        return number_of(found, name)

    @property
    def names(self) -> tuple[str, ...]:
        """Every released measure that has an interval."""
        found = self.result.results
        return tuple(n for n in found if n + _LOW in found and n + _HIGH in found)

    @property
    def confusion(self) -> Floats:
        """Noisy confusion matrix, truth by prediction; shape (n_classes, n_classes)."""
        return self.result.results["confusion"]

    def displays(self) -> tuple[Display, ...]:
        """Return the tables and pictures: confusion matrix, ROC curve, calibration."""
        first, *rest = super().displays()
        if self.scored_by == "assumed":
            first = replace(first, note=f"{first.note} {_ASSUMED}")
        return (first, *rest)

    def to_frame(self) -> pd.DataFrame:
        """Return every measure as a row; one row for each class or silo.

        Columns are value, low and high of the noise, ``population_low`` and ``population_high``.
        """
        import pandas as pd

        found, rows = self.result.results, []
        for name in self.names:
            values = found[name].ravel()
            nothing = np.full(len(values), np.nan)
            parts = [found.get(name + end, nothing).ravel() for end in (_LOW, _HIGH, *ENDS)]
            for i, cells in enumerate(zip(values, *parts, strict=True)):
                rows.append((name if len(values) == 1 else f"{name}[{i}]", *cells))
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
    truth: Any = None,
    **options: Any,
) -> Measures:
    """Measure a model on records that it has not seen, under a budget of its own.

    Parameters
    ----------
    model : estimator or None
        A fitted classifier or regressor of ours, which is put into the plan; or any other fitted
        one with `predict_proba` or `predict`, known to every silo. Its answer to a record must be a
        function of that record alone: see `scored_by` of :class:`Measures`, and
        :func:`~.estimators.record_functions.record_functions` for the classes of which that is proven.
    X : array_like of shape (n_samples, n_features), DataFrame, path, or list of these
        Records held back; a list is one silo each, and may be of pairs (X, y) without `y`. A path
        for a model of ours only.
    y : array_like of shape (n_samples,), list of these, or None
        The truth. None where X holds it in the column `target`.
    classes, target_bounds : sequence, (low, high), optional
        Public labels, or bounds of the truth of a regressor; those of the model or of the schema
        unless given.
    bounds, target : Schema, str, optional
        The contract of X, and the column of it that holds the truth; those of a model of ours
        unless given.
    unit, max_rows : str, int, optional
        Where there is no schema: the column of a DataFrame that holds the privacy unit of a record,
        and how many records of one count at each silo, the first ones. One record by default.
    epsilon, nominal_n, delta, ledger, dataset, frac_bits, max_loss
        As for every :class:`~cloister.estimators.base.PrivateEstimator`.
    predictions, truth : array_like of shape (n_samples,), or lists of these
        Instead of `model`, `X` and `y`: what a model has predicted, and what is true; with public
        `classes`, or `target_bounds` for numbers. A list is one silo each.
    options
        Of the task: `n_bins`, `bound`, `by_silo`; see the tasks "evaluation" and
        "regression-evaluation".

    Warns
    -----
    PrivacyWarning
        If the model is of a class that we do not know.

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
    if predictions is not None or truth is not None:
        stand_alone = all(given is None for given in (model, X, y))
        if predictions is None or truth is None or not stand_alone:
            raise PlanError(
                "predictions and truth stand for model, X and y; give both of them, or these."
            )
        X, y = predictions, truth
    X, y = unpaired(X, y)
    task = getattr(getattr(model, "plan_", None), "task", None)
    ours = isinstance(task, Classifier | Regressor)
    if (unit, max_rows) != (None, None) and (ours or bounds is not None):
        raise PlanError("unit and max_rows are those of the schema; leave them out.")
    if isinstance(task, Classifier | Regressor):
        about = {"target": target, "classes": classes, "target_bounds": target_bounds}
        return _evaluate_ours(model, task, (X, y), about, spending, options)
    contract = _Contract(bounds, target, unit, max_rows, classes, target_bounds)
    if model is None:
        silos = _predicted(X, y)
        return _evaluate_other(_Predictions(classes), silos, contract, spending, options)
    if not hasattr(model, "predict"):
        raise PlanError(
            f"model must be a fitted classifier or regressor, got {type(model).__name__}."
        )
    return _evaluate_other(model, contract.silos(model, X, y), contract, spending, options)


def _predicted(predictions: Any, truth: Any) -> list[_Silo]:
    """Return what each silo has where the predictions themselves are given."""
    many = isinstance(predictions, list | tuple) and any(np.ndim(p) == 1 for p in predictions)
    parts = list(predictions) if many else [predictions]
    truths = label_parts(truth, len(parts))
    silos = [_Silo(Labelled(None, "prediction", p), t) for p, t in zip(parts, truths, strict=True)]
    for silo in silos:
        if len(silo.table.column) != len(Labelled(None, "truth", silo.truth).column):
            raise DataError("every silo must have one label for each record.")
    return silos


def _evaluate_ours(
    model: Any,
    task: Classifier | Regressor,
    pair: tuple[Any, Any],
    about: dict[str, Any],
    spending: BudgetParameters,
    options: dict[str, Any],
) -> Measures:
    """Put a released model into the plan; the silos apply it."""
    spending = replace(
        spending,
        frac_bits=task.frac_bits,
        dataset=spending.dataset or getattr(model, "dataset", None),
        bounds=model.bounds if spending.bounds is None else spending.bounds,
    )
    at, grid = task.target, model.plan_.grid
    known = {"target": getattr(model, "target", None)}
    if isinstance(task, Classifier):
        about, known["classes"] = {**about, "target_bounds": None}, model.classes_
    else:
        known["target_bounds"] = (grid.low[at], grid.high[at])
    about = {k: known.get(k) if value is None else value for k, value in about.items()}
    columns = [name for j, name in enumerate(model.plan_.columns) if j != at]
    named = None if columns == [f"x{j}" for j in range(len(columns))] else columns
    data = read_labelled(*pair, spending, **about, names=named)
    if data.schema.names != model.plan_.columns or data.schema.grid(task.frac_bits) != grid:
        raise DataError(
            f"columns must be those the model was trained on, {list(model.plan_.columns)}, with "
            f"the same bounds, got {list(data.schema.names)}."
        )
    kind = Evaluation if isinstance(task, Classifier) else RegressionEvaluation
    released = model.result_.results
    return Measures(release(kind, data, spending, model=task, released=released, **options))


def _evaluate_other(
    model: Any,
    silos: list[_Silo],
    contract: _Contract,
    spending: BudgetParameters,
    options: dict[str, Any],
) -> Measures:
    """Let each silo score its records with a model that everybody has, and read the scores."""
    asked = _Asked.of(model)
    bounds = contract.bounds_of_truth(model)
    if bounds is None:
        kind: type[Task] = Evaluation
        labels = np.asarray(model.classes_ if contract.classes is None else contract.classes)
        columns, answers = _labelled(asked, silos, labels)
    else:
        kind = RegressionEvaluation
        truth = Column(name="truth", type="number", min=bounds[0], max=bounds[1])
        columns = (truth, truth.model_copy(update={"name": "prediction"}))
        answers = [asked.numbers(silo.table) for silo in silos]
    schema = contract.schema(columns, spending.dataset)
    tables = [_read_by(schema, silo, cells) for silo, cells in zip(silos, answers, strict=True)]
    data = SiloData(schema, by_schema(tables, schema, spending))
    if not asked.own:
        _say_assumed(model)
    names: dict[str, Any] = {"truth": schema.names[0], columns[1].name: schema.names[1]}
    result = release(kind, data, spending, **names, **options)
    return Measures(result, "row code" if asked.own else "assumed")


def _say_assumed(model: Any) -> None:
    known = "not there" if isinstance(model, _Predictions) else f"a {type(model).__name__}"
    warnings.warn(
        f"model is {known}, so it cannot be proven that its answer to a record is a function of "
        "that record alone; the guarantee assumes it.",
        PrivacyWarning,
        stacklevel=4,
    )


def _labelled(
    asked: _Asked, silos: list[_Silo], labels: np.ndarray
) -> tuple[tuple[Column, Column], list[Any]]:
    """Return the columns of truth and answer of a classifier, and its answers in each silo."""
    truth = category_column("truth", class_categories(labels))
    if len(labels) == 2 and asked.scores:
        answer = Column(name="score", type="number", min=0.0, max=1.0)
        return (truth, answer), [asked.scores(silo.table) for silo in silos]
    answer = truth.model_copy(update={"name": "prediction"})
    return (truth, answer), [asked.labels(silo.table) for silo in silos]


@dataclass(frozen=True)
class _Predictions:
    """The model of a table whose one column holds predictions."""

    classes_: Any

    def predict(self, table: Any) -> Any:
        """Return the column."""
        return table.column


@dataclass(frozen=True)
class _Silo:
    """What a silo has: a table for the model, the truth, and the privacy unit of each record."""

    table: Any
    truth: Any  # cells as they were given
    units: Any = None


@dataclass(frozen=True)
class _Contract:
    """What is agreed of records that a model of others is measured on."""

    bounds: Schema | None
    target: str | None
    unit: str | None
    max_rows: int | None
    classes: Any = None
    target_bounds: Any = None

    def __post_init__(self) -> None:
        if self.bounds is not None and not isinstance(self.bounds, Schema):
            raise PlanError(f"bounds must be a Schema, got {type(self.bounds).__name__}.")
        self.schema([Column(name="truth", type="boolean", min=0.0, max=1.0)], None)  # or refuses

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
        given = self.target_bounds
        if given is None and not hasattr(model, "classes_") and column:
            given = (column.min, column.max)
        if given is None and getattr(model, "classes_", None) is None:
            raise PlanError(
                "target_bounds must be given: two public numbers around the truth; or classes, "
                "where it is a label."
            )
        return None if given is None else (float(given[0]), float(given[1]))

    def silos(self, model: Any, X: Any, y: Any) -> list[_Silo]:
        """Return what each silo has; tables hold what the model looks at."""
        silos = as_silos(X)
        tables = [row_table(silo) for silo in silos]
        if any(len(getattr(table, "shape", ())) != 2 for table in tables):
            raise DataError(
                "X must be a table in memory, or a list of these, for a model that is not ours; "
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
        beside = [name for name in (self.unit_column, self.target) if name is not None]
        if not named and (beside or self.bounds is not None):
            raise DataError(
                "X must be a DataFrame where unit, target or a schema name its columns."
            )
        if truth is None and self.target is None:
            raise DataError(
                "y must be given for a model that is not ours, or target with a table that has it."
            )
        if named != bool(wanted):
            raise DataError(f"silo {i} must have names of columns exactly if the others have.")
        needed = [self.unit_column, self.target if truth is None else None, *wanted]
        have = _names(table) if named else []
        if absent := [name for name in needed if name is not None and name not in have and named]:
            raise DataError(f"X of silo {i} has no column {absent[0]!r}; add it, or name another.")
        truth = table[self.target] if truth is None else truth
        if len(table) != len(Labelled(None, "truth", truth).column):
            raise DataError("every silo must have one label for each record.")
        units = None if self.unit_column is None else table[self.unit_column]
        features = table.select(wanted) if hasattr(table, "select") else table
        return _Silo(features[wanted] if named and features is table else features, truth, units)

    def _features(self, model: Any, table: Any) -> list[str]:
        """Return the names of the columns that the model looks at, the same in every silo.

        None where the first silo is an array: columns are then matched by their places.
        """
        if not is_frame(table):
            return []
        known = getattr(model, "feature_names_in_", None)
        if known is not None:
            return [str(name) for name in known]
        beside = (self.unit_column, self.target)
        wanted = self.bounds.names if self.bounds else _names(table)
        return [name for name in wanted if name not in beside]

    def schema(self, columns: Sequence[Column], dataset: str | None) -> Schema:
        """Return the contract of the columns that are read: truth and answer."""
        unit = self.unit_column
        columns = [
            c.model_copy(update={"name": f"the {c.name}"}) if c.name == unit else c for c in columns
        ]
        common: dict[str, Any] = {"columns": tuple(columns)}
        if self.bounds is None:
            common |= {"unit": self.unit or "row", "max_rows": self.max_rows}
            return Schema(dataset=dataset or "unnamed", **common)
        return Schema(**{**dict(self.bounds), **common})


@dataclass(frozen=True)
class _Asked:
    """How the answers of a model are got; each function takes a table."""

    own: bool  # by our own code
    scores: Callable[[Any], Floats] | None  # of the last of two classes
    labels: Callable[[Any], np.ndarray]
    numbers: Callable[[Any], Floats]

    @classmethod
    def of(cls, model: Any) -> Self:
        """Take our own code where the class of the model is known, else ask record by record."""
        proba = hasattr(model, "predict_proba")
        if type(model) is DPSiloEnsemble:
            return cls(True, *_of_ensemble(model))
        if code := record_functions(model):
            rows, classes = partial(_rows, code.n_features), getattr(model, "classes_", ())
            return cls(
                True,
                (lambda table: code(rows(table))[:, 1]) if proba else None,
                lambda table: np.asarray(classes)[code.labels(rows(table))],
                lambda table: code(rows(table))[:, 0],
            )
        return cls(
            False,
            (lambda table: _ask(model.predict_proba, table, (0, 2))[:, 1]) if proba else None,
            lambda table: _ask(model.predict, table, (0,)),
            lambda table: _ask(model.predict, table, (0,)),
        )


def _rows(n_features: int, table: Any) -> Floats:
    """Return a table as numbers, NaN where a cell holds none."""
    rows = read_floats(table)
    if rows.shape[1] != n_features:
        raise DataError(f"X must have the model's {n_features} columns, got {rows.shape[1]}.")
    return rows


def _ask(answer: Callable[[Any], Any], table: Any, nothing: tuple[int, ...]) -> np.ndarray:
    """Return a model's answers, asked about one record a call."""
    if isinstance(table, Labelled):  # the answers themselves
        given: np.ndarray = answer(table)
        return given
    if not len(table):
        return np.zeros(nothing)
    if hasattr(table, "columns"):
        return frame_by_frame(answer, table)
    rows = np.asarray(table)
    # the type of an array may tell of other records: the longest text, a gap among whole numbers
    return one_by_one(answer, rows.astype(np.float64 if rows.dtype.kind in "biuf" else object))


def _of_ensemble(model: DPSiloEnsemble) -> tuple[Callable[[Any], Any], ...]:
    """Return scores and labels of an ensemble of ours, asked about one record a call."""
    first, k = model.models_[0], len(model.classes_)

    def shares(record: Any) -> Floats:
        return combined_probabilities(
            [part.result_ for part in model.models_],
            record,
            weights=model.weights_.tolist(),
            combine=model.combine,
        )

    def each(answer: Callable[[Any], Any], nothing: tuple[int, ...], table: Any) -> np.ndarray:
        records = grid_rows(first, table)
        return one_by_one(answer, records) if len(records) else np.zeros(nothing)

    def labels(table: Any) -> np.ndarray:
        best = each(lambda record: best_class(shares(record), model.costs), (0,), table)
        return np.asarray(model.classes_)[best.astype(np.int64)]

    return lambda table: each(shares, (0, k), table)[:, 1], labels, labels


def _names(table: Any) -> list[Any]:
    """Return the names of a frame's columns."""
    return list(table.column_names if hasattr(type(table), "column_names") else table.columns)


def _read_by(schema: Schema, silo: _Silo, answers: Any) -> Any:
    """Return truths and answers as a table that the schema reads."""
    truth, answer = schema.names
    column = Labelled(None, answer, answers).column
    if silo.units is None:
        cells = column.tolist() if hasattr(column, "tolist") else list(column)
        return Labelled([[cell] for cell in cells], truth, silo.truth)
    import pandas as pd

    units = Labelled(None, "unit", silo.units).column
    units = units.to_list() if hasattr(units, "to_list") else list(units)
    # as objects: pandas would choose a type for a column by all of its cells
    beside = {answer: pd.Series(list(column), dtype=object)}
    table = pd.DataFrame({**beside, schema.unit: pd.Series(units, dtype=object)})
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
    """Measure centres on records, under a budget of its own.

    Parameters
    ----------
    centres : estimator or array_like of shape (n_clusters, n_features), data units
        A fitted ``DPKMeans``, or public centres.
    X : array_like of shape (n_samples, n_features), DataFrame, path, or list of these
        A list is one silo each.
    bounds : (low, high) or Schema
        Public bounds; those of the estimator unless given.
    epsilon, nominal_n, delta, ledger, dataset, frac_bits, max_loss
        As for every :class:`~cloister.estimators.base.PrivateEstimator`.
    n_bins : int, >= 2
        Of the histogram of silhouettes.

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
    places = getattr(centres, "cluster_centers_", centres)
    if bounds is None:
        bounds = getattr(centres, "bounds", None)
    spending = BudgetParameters(
        epsilon, bounds, nominal_n, delta, ledger, dataset, frac_bits, max_loss
    )
    options: dict[str, Any] = {"centres": np.asarray(places), "n_bins": n_bins}
    data = read_silos(X, spending, names=getattr(centres, "feature_names_in_", None))
    return Measures(release(ClusterQuality, data, spending, **options))
