"""Linear models as plain values: a public layout, and the owner's secret weights.

A score is a weighted sum of *entries*, which the caller computes from a row. An entry is a number
scaled to [-1, 1] by its public range, or its square. For other columns it is the indicator of a
category or bin, except the first. The layout of entries is public; weights and bias are not. Models
come from this package (least squares, logistic regression, naive Bayes) and from scikit-learn
(least squares, ridge, logistic regression, behind scalers).

The weights are determined by the model's scores of rows that differ in one entry, so they include
every scaling. The result must then agree with the model on other rows.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cloister.app.release import Release
from cloister.core.arrays import Results
from cloister.core.declared import Length, Range, Rule, declared
from cloister.core.errors import DataError, PlanError
from cloister.core.randomness import public_generator
from cloister.data import read_floats
from cloister.data.schema import Schema, schema_of
from cloister.estimators.tables import plain_schema, with_target
from cloister.federation.pki import is_open_to_others, write_secret
from cloister.hazmat.fixedpoint import Grid
from cloister.protocol.task import PublicColumn
from cloister.tasks.columns import bins_of
from cloister.tasks.supervised.linear import Linear
from cloister.tasks.supervised.logistic import Logistic
from cloister.tasks.supervised.naive_bayes import NaiveBayes

Floats = NDArray[np.float64]
Label = str | int | float | bool
FORMAT = "cloister-linear/1"
_AGREE = 1e-9  # of the size of scores: a model that differs more from its weights is not linear
_PROBES = 64


@declared
class Entry(PublicColumn):
    """One column of a row and its entries: categories, bins, or a number.

    Parameters
    ----------
    name, low, high, categories
        As in :class:`~cloister.protocol.task.PublicColumn`.
    bins : int
        Number of equal parts of the range; 0 for a number without binning.
    square : bool
        If True, the square of the scaled number is an entry, too.
    """

    bins: Annotated[int, Range(0, 1024), Rule("not 1", lambda bins: bins != 1)] = 0
    square: bool = False

    @property
    def cells(self) -> int:
        """Number of categories or bins; 0 for a number."""
        return self.levels or self.bins

    @property
    def width(self) -> int:
        """Number of entries of the column."""
        return self.cells - 1 if self.cells else 1 + self.square

    def at(self, share: float) -> float:
        """Return the value at a fraction of the range below 1; for categories, a code."""
        if self.categories:
            return float(int(share * self.levels))
        return self.low + share * (self.high - self.low)


@declared
class Layout:
    """The public part of a model, with which callers encode rows and interpret scores.

    Parameters
    ----------
    columns : tuple of Entry
    frac_bits : int
        Numbers are rounded to multiples of ``2**-frac_bits`` of half their range, like in the
        model's own predictions; 0 for no rounding.
    classes : tuple of str or numbers
        A row has a score for each class except the first: its log-odds against the first. Without
        classes it has one score, the predicted value.
    """

    columns: Annotated[tuple[Entry, ...], Length(1)]
    frac_bits: Annotated[int, Range(0, 24)] = 0
    classes: Annotated[tuple[Label, ...], Rule("none or two and more", lambda c: len(c) != 1)] = ()

    def __post_init__(self) -> None:
        self._grid  # noqa: B018 - refuses columns that are none

    @cached_property
    def _schema(self) -> Schema:
        return schema_of(self.columns)

    @cached_property
    def _grid(self) -> Grid:
        return self._schema.grid(self.frac_bits or 24)

    @property
    def width(self) -> int:
        """Number of entries of a row."""
        return sum(column.width for column in self.columns)

    @property
    def n_scores(self) -> int:
        """Number of scores of a row."""
        return len(self.classes) - 1 if self.classes else 1

    def encode(self, X: Any) -> Floats:
        """Return the entries of rows, all in [-1, 1].

        Parameters
        ----------
        X : array, table or path
            Data units. Columns of a table or file are selected by name; those of an array are in
            order. Cells of categories are text.

        Returns
        -------
        ndarray of shape (n_samples, width)

        Raises
        ------
        DataError
            If the table has no rows or lacks a column, or a value is missing, out of range or an
            unknown category. The message has the column and its range, never the value.
        """
        values = read_floats(X, self._schema.names, self._schema)
        good = (values >= self._grid.low) & (values <= self._grid.high)  # NaN is neither
        if not len(values):
            raise DataError("rows must be at least one, got none.")
        if not good.all():
            column = self.columns[int(good.all(axis=0).argmin())]
            rule = (
                f"one of {list(column.categories)}"
                if column.categories
                else f"finite and in [{column.low:g}, {column.high:g}]"
            )
            raise DataError(
                f"column {column.name!r} must be {rule} in every row; clip it or leave such "
                "rows out, nothing was encrypted."
            )
        return self.entries(values)

    def entries(self, values: Floats) -> Floats:
        """Return the entries of numbers within the ranges; categories are codes from 0."""
        steps = self._grid.encode(values)
        scaled = steps / self._grid.one if self.frac_bits else self._grid.normalise(values)
        made: list[NDArray[Any]] = []
        for j, column in enumerate(self.columns):
            if column.cells:
                found: NDArray[Any] = values[:, j]
                if column.bins:
                    found = bins_of(steps[:, j], column.bins, self._grid.frac_bits)
                made += [found == cell for cell in range(1, column.cells)]
            else:
                # A width of 1 cuts off the square.
                made += [scaled[:, j], scaled[:, j] ** 2][: column.width]
        return np.column_stack(made).astype(np.float64)

    def predictions(self, scores: Floats) -> Floats:
        """Return the predictions for scores.

        Parameters
        ----------
        scores : ndarray of shape (n_samples, n_scores)

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_classes)
            The predicted value, or the probability of each class.
        """
        if not self.classes:
            return scores[:, 0].copy()
        logs = np.column_stack([np.zeros(len(scores)), scores])
        # Less the largest, so that no exponential overflows.
        odds = np.exp(logs - logs.max(axis=1, keepdims=True))
        probabilities: Floats = odds / odds.sum(axis=1, keepdims=True)
        return probabilities

    @classmethod
    def from_document(cls, document: Any) -> Self:
        """Read a layout from the output of ``asdict``, before or after JSON.

        Raises
        ------
        TypeError, KeyError, PlanError
            If the document is malformed; the caller turns it into a sentence.
        """
        columns = tuple(Entry(**column) for column in document["columns"])
        return cls(**{**document, "columns": columns})


@dataclass(frozen=True, eq=False)
class LinearScorer:
    """A linear model: its layout is public, its weights are not.

    Parameters
    ----------
    layout : Layout
    weights : ndarray of shape (n_scores, layout.width)
        Weights of entries in [-1, 1].
    bias : ndarray of shape (n_scores,)
    """

    layout: Layout
    weights: Floats = field(repr=False)
    bias: Floats = field(repr=False)

    def __post_init__(self) -> None:
        shape = self.layout.n_scores, self.layout.width
        for name, wanted in (("weights", shape), ("bias", shape[:1])):
            value = np.array(getattr(self, name), dtype=np.float64)
            if value.shape != wanted or not np.isfinite(value).all():
                raise PlanError(
                    f"{name} must be finite numbers of shape {wanted}, got shape {value.shape}; "
                    "make them with linear_scorer."
                )
            value.flags.writeable = False
            object.__setattr__(self, name, value)

    @property
    def score_bound(self) -> float:
        """Largest absolute score of a row within the ranges."""
        return float((np.abs(self.weights).sum(axis=1) + np.abs(self.bias)).max())

    @property
    def norm(self) -> float:
        """Largest L2 norm of the weights of a score."""
        return float(np.sqrt((self.weights**2).sum(axis=1)).max())

    @cached_property
    def digest(self) -> str:
        """Digest of layout and weights, which names the model in the file of limits."""
        return hashlib.sha256(self._text()).hexdigest()

    def scores(self, X: Any) -> Floats:
        """Return the scores in the clear, (n_samples, n_scores); for the owner of the model."""
        return self.layout.encode(X) @ self.weights.T + self.bias

    def predict(self, X: Any) -> Floats:
        """Return the predictions in the clear; see :meth:`Layout.predictions`."""
        return self.layout.predictions(self.scores(X))

    def _text(self) -> bytes:
        numbers = {"weights": self.weights.tolist(), "bias": self.bias.tolist()}
        document = {"format": FORMAT, "layout": asdict(self.layout), **numbers}
        return json.dumps(document, sort_keys=True, allow_nan=False).encode()

    def save(self, path: Path | str) -> None:
        """Write the model, weights included, into a new file that only its owner can read."""
        write_secret(Path(path), self._text())

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read the file of :meth:`save`.

        Raises
        ------
        DataError
            If others may read the file, it cannot be read, or it has another format.
        """
        if is_open_to_others(Path(path)):
            raise DataError(f"model {str(path)!r} may be read by others; chmod 600 it.")
        try:
            document = json.loads(Path(path).read_text(encoding="utf-8"))
            if document.pop("format") == FORMAT:
                return cls(**{**document, "layout": Layout.from_document(document["layout"])})
        except (OSError, AttributeError, TypeError, KeyError, ValueError, RecursionError):
            pass
        raise DataError(
            f"model {str(path)!r} must be a file {FORMAT!r} of a linear scorer, as it was written; "
            "write it again with LinearScorer.save."
        )


def entries_of_file(model: Path) -> int:
    """Return the number of entries of the model that :meth:`LinearScorer.save` wrote."""
    return LinearScorer.load(model).layout.width


def mean_scorer(scorers: Sequence[LinearScorer]) -> LinearScorer:
    """Return a linear scorer of the mean score of an ensemble, at the cost of one member.

    For classifiers it is the mean of log-odds, not of probabilities. The caller sees no member's
    score.

    Raises
    ------
    PlanError
        If the members differ in layout.
    """
    if len({scorer.layout for scorer in scorers}) != 1:
        raise PlanError(
            "scorers of an ensemble must have the same columns, ranges and classes; make them with "
            "the same public bounds."
        )
    weights: Floats = np.mean([scorer.weights for scorer in scorers], axis=0)
    return LinearScorer(scorers[0].layout, weights, np.mean([s.bias for s in scorers], axis=0))


# From models --------------------------------------------------------------------------------------


def linear_scorer(model: Any, bounds: tuple[ArrayLike, ArrayLike] | None = None) -> LinearScorer:
    """Convert a model to a linear scorer.

    Parameters
    ----------
    model : DPLinearRegression, DPLogisticRegression, DPNaiveBayes, Release, or of scikit-learn
        Fitted. From scikit-learn: LinearRegression, Ridge or LogisticRegression, alone or in a
        Pipeline behind StandardScaler, MinMaxScaler, MaxAbsScaler or RobustScaler.
    bounds : (low, high), optional
        Public ranges of the columns, two numbers or two sequences; required for models of
        scikit-learn only.

    Raises
    ------
    PlanError
        If the model has another type, since no other is linear in the entries of a caller.
    """
    result = model if isinstance(model, Release) else getattr(model, "result_", None)
    if not isinstance(result, Release):
        return _of_sklearn(model, bounds)
    if bounds is not None:
        raise PlanError("bounds of a private model are its own; leave them out.")
    return _of_result(result, getattr(model, "classes_", None))


def _of_result(result: Release, classes: NDArray[Any] | None) -> LinearScorer:
    plan, task = result.plan, result.plan.task
    if not isinstance(task, Linear | Logistic | NaiveBayes):
        raise _refused(f"the task {task.name!r}")
    return scorer_of_task(task, result.results, plan.columns, plan.grid, classes)


def scorer_of_task(
    task: Linear | Logistic | NaiveBayes,
    results: Results,
    names: Sequence[str],
    grid: Grid,
    classes: NDArray[Any] | None,
) -> LinearScorer:
    """Convert the release of a task to a linear scorer; `classes` replace its names."""
    labels: tuple[Any, ...] = () if isinstance(task, Linear) else task.classes
    layout = Layout(
        columns=tuple(_entries_of(names, task)),
        frac_bits=grid.frac_bits,
        classes=labels if classes is None else tuple(classes.tolist()),
    )

    def score(X: Floats) -> Floats:
        records = with_target(X, task.target, grid)
        if isinstance(task, Linear):
            return task.predict(results, records)[:, None]
        of_classes = task.decision if isinstance(task, Logistic) else task.log_joint
        return _against_first(of_classes(results, records))

    return _probed(layout, score)


def _entries_of(names: Sequence[str], task: Linear | Logistic | NaiveBayes) -> Iterator[Entry]:
    """Yield the entry of each column except the target, as the task reads it."""
    labels = iter(() if isinstance(task, NaiveBayes) else task.names)
    for j, (name, low, high) in enumerate(zip(names, task.low, task.high, strict=True)):
        if j == task.target:
            continue
        if isinstance(task, NaiveBayes):
            bins = task.cells[j] if task.kinds[j] == "binned" else 0
            square = task.kinds[j] == "gaussian"
            yield Entry(name, low, high, task.categories[j], bins=bins, square=square)
        else:  # a column of the design is named "column=category"
            own = [next(labels) for _ in range(task.levels[j] or 1)]
            values = [label.removeprefix(f"{name}=") for label in own] if task.levels[j] else []
            yield Entry(name, low, high, tuple(values))


def _against_first(scores: Floats) -> Floats:
    """Return scores less the score of the first class; two classes have one score already."""
    return scores if scores.shape[1] == 1 else scores[:, 1:] - scores[:, :1]


def _of_sklearn(model: Any, bounds: tuple[ArrayLike, ArrayLike] | None) -> LinearScorer:
    from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, RobustScaler, StandardScaler
    from sklearn.utils.validation import check_is_fitted

    *before, last = [step for _, step in model.steps] if type(model) is Pipeline else [model]
    for step in before:
        known = type(step) in (StandardScaler, MinMaxScaler, MaxAbsScaler, RobustScaler)
        # A scaler that clips is not linear outside its range.
        if not known or getattr(step, "clip", False):
            raise _refused(f"a step {type(step).__name__}")
    if type(last) not in (LinearRegression, Ridge, LogisticRegression):
        raise _refused(f"a {type(last).__name__}")
    check_is_fitted(last)
    names = getattr(model, "feature_names_in_", [f"x{j}" for j in range(model.n_features_in_)])
    columns = plain_schema(bounds, list(map(str, names)), None).public
    classes = tuple(last.classes_.tolist()) if isinstance(last, LogisticRegression) else ()
    layout = Layout(columns=tuple(Entry(**vars(c)) for c in columns), classes=classes)
    answer = model.decision_function if classes else model.predict

    def score(X: Floats) -> Floats:
        with warnings.catch_warnings():  # a model of a DataFrame asks for names
            warnings.simplefilter("ignore", UserWarning)
            found = np.asarray(answer(X), dtype=np.float64).reshape(len(X), -1)
            expected = model.predict_proba(X) if classes else found
        if not classes and found.shape[1] > 1:
            raise _refused("several targets")
        scores = _against_first(found)
        if classes and not np.allclose(layout.predictions(scores), expected, rtol=0, atol=_AGREE):
            raise _refused("probabilities that are no softmax of its scores")
        return scores

    return _probed(layout, score)


def _refused(what: str) -> PlanError:
    return PlanError(
        f"model has {what}, which cannot be scored under encryption: one multiplication is all "
        "there is; use a linear, logistic or naive Bayes model, or score on shares."
    )


def _probed(layout: Layout, score: Callable[[Floats], Floats]) -> LinearScorer:
    """Determine the weights of a model that is linear in the entries; `score` takes numbers."""
    columns = layout.columns
    start = [column.at(0 if column.cells else 0.5) for column in columns]
    rows = np.tile(start, (layout.width + 1, 1))  # each row but the last is of another entry
    probes = ((j, value) for j, column in enumerate(columns) for value in _probes(column))
    for row, (j, value) in zip(rows, probes, strict=False):
        row[j] = value
    # One equation per weight and one for the bias.
    equations = np.column_stack([layout.entries(rows), np.ones(len(rows))])
    *weights, bias = np.linalg.solve(equations, score(rows)).astype(np.float64)
    scorer = LinearScorer(layout, np.transpose(weights), bias)
    # Other rows than those of the equations, which agree by construction.
    shares = public_generator("linear-scorer").random((_PROBES, len(columns)))
    rows = np.array([[c.at(part) for c, part in zip(columns, of, strict=True)] for of in shares])
    off = np.abs(layout.entries(rows) @ scorer.weights.T + scorer.bias - score(rows)).max()
    if not off <= _AGREE * max(1.0, scorer.score_bound):
        raise _refused("scores that are not linear in its columns")
    return scorer


def _probes(column: Entry) -> list[float]:
    """Return one value of a column for each of its entries, which changes that entry."""
    if column.cells:
        return [column.at((cell + 0.5) / column.cells) for cell in range(1, column.cells)]
    return [column.high, column.low][: column.width]
