"""``evaluate`` and ``cluster_quality``: how good a model is on records that stay where they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cloister.data import Records, array_records
from cloister.errors import DataError, PlanError
from cloister.estimators.base import PrivateEstimator, read_labelled
from cloister.estimators.tables import Floats, read_silos
from cloister.jobs import JobResult
from cloister.privacy.ledger import Ledger
from cloister.protocol.plan import Plan
from cloister.schema import Column, Schema
from cloister.tasks.base import Between, Classifier, Exhibit, Regressor, Task
from cloister.tasks.cluster_quality import ClusterQuality
from cloister.tasks.evaluate import Evaluation
from cloister.tasks.evaluate_regression import RegressionEvaluation

if TYPE_CHECKING:
    import pandas as pd

_LOW, _HIGH = "_low", "_high"


@dataclass(frozen=True)
class Measures:
    """Released measures of a model, each with its 95 % noise interval.

    Parameters
    ----------
    result : JobResult

    Examples
    --------
    ``measures["auc"]`` is the value with both ends of its interval; ``measures.confusion`` the
    noisy matrix; ``measures.to_frame()`` a table; ``measures.exhibits()`` what a report shows.
    """

    result: JobResult

    def __getitem__(self, name: str) -> Between:
        """Return a measure of the whole model.

        Raises
        ------
        KeyError
            If there is no such measure, or it has a value for each class.
        """
        found = self.result.results
        if name not in found or f"{name}{_LOW}" not in found or found[name].size != 1:
            raise KeyError(name)
        return Between(*(float(found[name + end].item()) for end in ("", _LOW, _HIGH)))

    @property
    def names(self) -> tuple[str, ...]:
        """Every released measure that has an interval."""
        found = self.result.results
        return tuple(n for n in found if n + _LOW in found and n + _HIGH in found)

    @property
    def confusion(self) -> Floats:
        """Noisy confusion matrix, truth by prediction; shape (n_classes, n_classes)."""
        return self.result.results["confusion"]

    @property
    def plan(self) -> Plan:
        """The plan of the release."""
        return self.result.plan

    @property
    def spent(self) -> float:
        """Epsilon spent, at the plan's delta."""
        return self.result.epsilon()

    def exhibits(self) -> tuple[Exhibit, ...]:
        """Return the tables and pictures: confusion matrix, ROC curve, calibration."""
        return self.plan.task.exhibits(self.result.results, self.plan.columns)

    def to_frame(self) -> pd.DataFrame:
        """Return every measure as a row: value, low, high; one row for each class or silo."""
        import pandas as pd

        found, rows = self.result.results, []
        for name in self.names:
            parts = [found[name + end].ravel() for end in ("", _LOW, _HIGH)]
            for i, (value, low, high) in enumerate(zip(*parts, strict=True)):
                rows.append((name if len(parts[0]) == 1 else f"{name}[{i}]", value, low, high))
        return pd.DataFrame(rows, columns=["measure", "value", "low", "high"]).set_index("measure")


class _Reader(PrivateEstimator):
    """Reads and pays as an estimator does; it has no model of its own."""

    def __init__(
        self,
        *,
        epsilon: float,
        bounds: Any,
        nominal_n: int | None,
        delta: float | None,
        ledger: Any,
        dataset: str | None,
        frac_bits: int,
        target: str | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.bounds = bounds
        self.nominal_n = nominal_n
        self.delta = delta
        self.ledger = ledger
        self.dataset = dataset
        self.frac_bits = frac_bits
        self.target = target


def evaluate(
    model: Any,
    X: Any,
    y: Any = None,
    *,
    epsilon: float,
    classes: Sequence[Any] | None = None,
    target_bounds: tuple[float, float] | None = None,
    nominal_n: int | None = None,
    delta: float | None = None,
    ledger: Ledger | str | Path | None = None,
    dataset: str | None = None,
    frac_bits: int = 16,
    **options: Any,
) -> Measures:
    """Measure a model on records that it has not seen, under a budget of its own.

    Parameters
    ----------
    model : estimator
        A fitted classifier or regressor of ours, which is put into the plan; or any other fitted
        one with `predict_proba` or `predict`, which is public or at least known to every silo.
    X : array_like of shape (n_samples, n_features), DataFrame, path, or list of these
        Records held back; a list is one silo each.
    y : array_like of shape (n_samples,), list of these, or None
        The truth. None where the bounds of the model are a schema and X holds its target.
    epsilon : float, > 0
        Privacy budget of the evaluation. There is no default.
    classes : sequence, optional
        Public labels; those of a classifier of ours unless given. Of another one, its ``classes_``.
    target_bounds : (low, high), optional
        Public bounds of the truth of a regressor; those of a model of ours unless given.
    nominal_n, delta, ledger, dataset, frac_bits
        As for :class:`~cloister.DPKMeans`.
    options
        Of the task: `n_bins`, `bound`, `by_silo`; see :class:`~.tasks.evaluate.Evaluation` and
        :class:`~.tasks.evaluate_regression.RegressionEvaluation`.

    Returns
    -------
    Measures

    Raises
    ------
    PlanError, DataError
        Before anything is spent.
    BudgetExceeded
        If the ledger refuses.

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
    payer: dict[str, Any] = {
        "epsilon": epsilon,
        "nominal_n": nominal_n,
        "delta": delta,
        "ledger": ledger,
        "dataset": dataset,
        "frac_bits": frac_bits,
    }
    task = getattr(getattr(model, "plan_", None), "task", None)
    if isinstance(task, Classifier | Regressor):
        return _evaluate_ours(model, task, X, y, classes, target_bounds, payer, options)
    if not hasattr(model, "predict"):
        raise PlanError(
            f"model must be a fitted classifier or regressor, got {type(model).__name__}."
        )
    return _evaluate_other(model, X, y, classes, target_bounds, payer, options)


def _evaluate_ours(
    model: Any,
    task: Task,
    X: Any,
    y: Any,
    classes: Any,
    target_bounds: Any,
    payer: dict[str, Any],
    options: dict[str, Any],
) -> Measures:
    """Put a released model into the plan; the silos apply it."""
    payer = {**payer, "frac_bits": task.frac_bits}
    payer["dataset"] = payer["dataset"] or getattr(model, "dataset", None)
    reader = _Reader(bounds=model.bounds, target=getattr(model, "target", None), **payer)
    reader._check_parameters()
    classifies = isinstance(task, Classifier)
    if classifies:
        target_bounds = None
        classes = model.classes_ if classes is None else classes
    elif target_bounds is None:
        at, grid = task.target, model.plan_.grid  # type: ignore[attr-defined]  # a regressor has one
        target_bounds = (grid.low[at], grid.high[at])
    schema, records, _ = read_labelled(reader, X, y, classes=classes, target_bounds=target_bounds)
    if schema.names != model.plan_.columns or schema.grid(task.frac_bits) != model.plan_.grid:
        raise DataError(
            f"columns must be those the model was trained on, {list(model.plan_.columns)}, with "
            f"the same bounds, got {list(schema.names)}."
        )
    kind = Evaluation if classifies else RegressionEvaluation
    released = model.result_.results
    return Measures(
        reader._release(kind, schema, records, model=task, released=released, **options)
    )


def _evaluate_other(
    model: Any,
    X: Any,
    y: Any,
    classes: Any,
    target_bounds: Any,
    payer: dict[str, Any],
    options: dict[str, Any],
) -> Measures:
    """Let each silo apply a model that everybody has, and read its column of answers."""
    tables, truths = _parts(X, y)
    if target_bounds is not None or not hasattr(model, "classes_"):
        if target_bounds is None:
            raise PlanError("target_bounds must be given: two public numbers around the truth.")
        low, high = (float(bound) for bound in target_bounds)
        columns = tuple(
            Column(name=name, type="number", min=low, max=high) for name in ("truth", "prediction")
        )
        answers = [np.asarray(model.predict(table), dtype=np.float64) for table in tables]
        silos = [
            np.column_stack([t.astype(np.float64), a]) for t, a in zip(truths, answers, strict=True)
        ]
        kind: type[Task] = RegressionEvaluation
        options = {**options, "truth": "truth", "prediction": "prediction"}
    else:
        labels = np.asarray(model.classes_ if classes is None else classes)
        words = tuple(f"{label}".strip() or f"class {i}" for i, label in enumerate(labels))
        truth = Column(
            name="truth", type="category", categories=words, min=0.0, max=len(words) - 1.0
        )
        numbers = [_numbers(part, labels) for part in truths]
        kind = Evaluation
        if len(labels) == 2 and hasattr(model, "predict_proba"):
            scored = [np.asarray(model.predict_proba(table))[:, 1] for table in tables]
            columns = (truth, Column(name="score", type="number", min=0.0, max=1.0))
            options = {**options, "truth": "truth", "score": "score"}
        else:
            scored = [_numbers(np.asarray(model.predict(table)), labels) for table in tables]
            columns = (truth, truth.model_copy(update={"name": "prediction"}))
            options = {**options, "truth": "truth", "prediction": "prediction"}
        silos = [np.column_stack(pair) for pair in zip(numbers, scored, strict=True)]
    schema = Schema(dataset=payer["dataset"] or "unnamed", unit="row", columns=columns)
    reader = _Reader(bounds=schema, **payer)
    reader._check_parameters()
    grid = schema.grid(int(payer["frac_bits"]))
    records: dict[str, Records] = {
        f"silo-{i}": array_records(table, grid) for i, table in enumerate(silos)
    }
    return Measures(reader._release(kind, schema, records, **options))


def _parts(X: Any, y: Any) -> tuple[list[Any], list[np.ndarray]]:
    """Return tables and truths of each silo."""
    if y is None:
        raise DataError("y must be given for a model that is not ours.")
    many = isinstance(X, list) and all(np.ndim(part) == 2 for part in X)
    tables = list(X) if many else [X]
    truths = [np.asarray(part) for part in (y if many else [y])]
    if len(tables) != len(truths) or any(
        len(table) != len(truth) for table, truth in zip(tables, truths, strict=False)
    ):
        raise DataError("every silo must have one label for each record.")
    return tables, truths


def _numbers(labels: np.ndarray, classes: np.ndarray) -> Floats:
    """Return the number of each label's class; NaN for an unknown one, so that it is dropped."""
    found = labels[:, None] == classes[None, :]
    return np.where(found.any(axis=1), found.argmax(axis=1).astype(np.float64), np.nan)


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
    n_bins: int = 20,
) -> Measures:
    """Measure centres on records, under a budget of its own.

    Parameters
    ----------
    centres : estimator or array_like of shape (n_clusters, n_features), data units
        A fitted ``DPKMeans``, or public centres.
    X : array_like of shape (n_samples, n_features), DataFrame, path, or list of these
        A list is one silo each.
    epsilon : float, > 0
        Privacy budget. There is no default.
    bounds : (low, high) or Schema
        Public bounds; those of the estimator unless given.
    nominal_n, delta, ledger, dataset, frac_bits
        As for :class:`~cloister.DPKMeans`.
    n_bins : int, >= 2
        Of the histogram of silhouettes.

    Returns
    -------
    Measures
        ``nicv``, ``silhouette`` and ``davies_bouldin``; see
        :class:`~.tasks.cluster_quality.ClusterQuality`.

    Raises
    ------
    PlanError, DataError
        Before anything is spent.
    BudgetExceeded
        If the ledger refuses.

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
    reader = _Reader(
        epsilon=epsilon,
        bounds=getattr(centres, "bounds", None) if bounds is None else bounds,
        nominal_n=nominal_n,
        delta=delta,
        ledger=ledger,
        dataset=dataset,
        frac_bits=frac_bits,
    )
    reader._check_parameters()
    schema, records, _ = read_silos(reader, X, frac_bits=int(frac_bits))
    return Measures(
        reader._release(ClusterQuality, schema, records, centres=np.asarray(places), n_bins=n_bins)
    )
