"""Linear models as plain values: what the caller may know, and what the owner keeps.

A score is a weighted sum of *entries*, which the caller makes of a row: a number scaled to [-1, 1]
by its public range, its square, or one entry for each category or bin but the first. The layout of
entries is public; weights and bias are not. Models come from this package (least squares, logistic
regression, naive Bayes) and from scikit-learn (least squares, ridge, logistic regression, behind
scalers).

The weights are found by asking the model about rows that differ in one entry, which folds every
scale into them whatever it is; the result must then agree with the model on other rows.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cloister.declared import Length, Range, declared
from cloister.errors import DataError, PlanError
from cloister.hazmat.fixedpoint import Grid
from cloister.jobs import JobResult
from cloister.randomness import public_generator
from cloister.tasks.supervised.class_tables import bins_of
from cloister.tasks.supervised.linear import Linear
from cloister.tasks.supervised.logistic import Logistic
from cloister.tasks.supervised.naive_bayes import NaiveBayes

Floats = NDArray[np.float64]
Link = Literal["identity", "log-odds"]
LINKS = get_args(Link)
Label = str | int | float | bool
FORMAT = "cloister-linear/1"
_AGREE = 1e-9  # of the size of scores: a model that differs more from its weights is not linear
_PROBES = 64


@declared
class Entry:
    """One column of a row as the caller encodes it.

    Parameters
    ----------
    name : str
    low, high : float, data units
        Public range; the codes of the first and last category where there are categories.
    categories : tuple of str
        Empty for numbers.
    bins : int
        Equal parts of the range, 0 for a number that enters as it is.
    square : bool
        Whether the square of the scaled number enters too.
    """

    name: str
    low: float
    high: float
    categories: tuple[str, ...] = ()
    bins: Annotated[int, Range(0, 1024)] = 0
    square: bool = False

    @property
    def width(self) -> int:
        """How many entries it makes."""
        return (len(self.categories) or self.bins or 2 + self.square) - 1


@declared
class Layout:
    """What a caller must know to encode its rows; public.

    Parameters
    ----------
    columns : tuple of Entry
    frac_bits : int
        Numbers are rounded to multiples of ``2**-frac_bits`` of half their range, as the model's
        own predictions do; 0 if they are not rounded.
    """

    columns: Annotated[tuple[Entry, ...], Length(1)]
    frac_bits: Annotated[int, Range(0, 24)] = 0

    def __post_init__(self) -> None:
        low, high = zip(*((column.low, column.high) for column in self.columns), strict=True)
        Grid(low, high)  # refuses bounds that are none
        if any(1 in (len(column.categories), column.bins) for column in self.columns):
            raise PlanError("columns must have at least 2 categories or bins, or none.")

    @property
    def width(self) -> int:
        """How many entries a row makes."""
        return sum(column.width for column in self.columns)

    def encode(self, X: Any) -> Floats:
        """Return the entries of rows, all in [-1, 1].

        Parameters
        ----------
        X : array_like of shape (n_samples, n_columns) or DataFrame
            Data units. A DataFrame is read by the names of its columns and categories; in an
            array of numbers, categories are their numbers from 0.

        Returns
        -------
        ndarray of shape (n_samples, width)

        Raises
        ------
        DataError
            If the shape is wrong, or a value is not finite, out of range or an unknown category:
            with the column and its range, never the value.
        """
        cells = _cells(X, self.columns)
        parts = map(self._of_column, self.columns, cells)
        return np.column_stack([entry for part in parts for entry in part])

    def _of_column(self, column: Entry, numbers: Floats) -> Iterator[Floats]:
        good = np.isfinite(numbers) & (numbers >= column.low) & (numbers <= column.high)
        if column.categories:
            good &= numbers == np.rint(numbers)
        if not good.all():
            rule = (
                f"one of {list(column.categories)}"
                if column.categories
                else f"finite and in [{column.low:g}, {column.high:g}]"
            )
            raise DataError(
                f"column {column.name!r} must be {rule} in every row; clip it or leave such "
                "rows out, nothing was encrypted."
            )
        if column.categories:
            yield from (1.0 * (numbers == code) for code in range(1, len(column.categories)))
            return
        grid = Grid((column.low,), (column.high,), self.frac_bits or 24)
        if column.bins:
            found = bins_of(grid.encode(numbers[:, None])[:, 0], column.bins, grid.frac_bits)
            yield from (1.0 * (found == cell) for cell in range(1, column.bins))
            return
        scaled = grid.normalise(numbers[:, None])[:, 0]
        if self.frac_bits:
            scaled = grid.encode(numbers[:, None])[:, 0] / grid.one
        yield scaled
        if column.square:
            yield scaled**2

    @classmethod
    def from_document(cls, document: Any) -> Layout:
        """Read what ``asdict`` made of a layout, before or after JSON; DataError if it is none."""
        try:
            columns = tuple(Entry(**column) for column in document["columns"])
            return cls(**{**document, "columns": columns})
        except (TypeError, KeyError, PlanError):
            raise DataError("layout of columns is damaged; take the original.") from None


@dataclass(frozen=True, eq=False)
class LinearScorer:
    """A linear model: its layout is public, its weights are not.

    Parameters
    ----------
    layout : Layout
    weights : ndarray of shape (n_scores, layout.width)
        For entries in [-1, 1].
    bias : ndarray of shape (n_scores,)
    link : {"identity", "log-odds"}
        What a score is: the predicted value, or the log-odds of each class but the first against
        the first.
    classes : tuple of str or numbers
        Empty for "identity".
    """

    layout: Layout
    weights: Floats
    bias: Floats
    link: Link
    classes: tuple[Label, ...] = ()

    def __post_init__(self) -> None:
        weights = np.array(self.weights, dtype=np.float64)
        bias = np.array(self.bias, dtype=np.float64)
        n_scores = len(self.classes) - 1 if self.link == "log-odds" else 1
        plain = all(isinstance(label, str | int | float) for label in self.classes)
        if self.link not in LINKS or not plain or (self.link == "identity" and self.classes):
            raise PlanError(
                f"link must be one of {LINKS}, the second with plain classes, got {self.link!r}."
            )
        if weights.shape != (n_scores, self.layout.width) or bias.shape != (n_scores,):
            raise PlanError(
                f"weights must have shape {(n_scores, self.layout.width)} and bias {(n_scores,)}, "
                f"got {weights.shape} and {bias.shape}."
            )
        if not n_scores or not (np.isfinite(weights).all() and np.isfinite(bias).all()):
            raise PlanError("weights and bias must be finite, for two or more classes.")
        for name, value in (("weights", weights), ("bias", bias)):
            value.flags.writeable = False
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        return f"LinearScorer({len(self.bias)} scores of {self.layout.width} entries, {self.link})"

    @property
    def score_bound(self) -> float:
        """No row within the ranges has a score larger in size."""
        return float((np.abs(self.weights).sum(axis=1) + np.abs(self.bias)).max())

    @property
    def norm(self) -> float:
        """L2 norm of the weights of the score that has the largest."""
        return float(np.sqrt((self.weights**2).sum(axis=1)).max())

    @cached_property
    def digest(self) -> str:
        """Of layout and weights; it names the model where its queries are counted."""
        return hashlib.sha256(json.dumps(self.document(), sort_keys=True).encode()).hexdigest()

    def scores(self, X: Any) -> Floats:
        """Return the scores in the clear, (n_samples, n_scores); for the owner of the model."""
        return self.layout.encode(X) @ self.weights.T + self.bias

    def predict(self, X: Any) -> Floats:
        """Return what :func:`linked` makes of the scores in the clear."""
        return linked(self.scores(X), self.link)

    def document(self) -> dict[str, Any]:
        """Return plain values for JSON, weights included: the owner's file."""
        return {
            "format": FORMAT,
            "layout": asdict(self.layout),
            "weights": self.weights.tolist(),
            "bias": self.bias.tolist(),
            "link": self.link,
            "classes": list(self.classes),
        }

    @classmethod
    def from_document(cls, document: Any) -> LinearScorer:
        """Read :meth:`document`.

        Raises
        ------
        DataError
            If it is not such a document.
        """
        try:
            if document["format"] != FORMAT or len(document) != 6:
                raise KeyError("format")
            weights, bias = (np.array(document[name], np.float64) for name in ("weights", "bias"))
            layout, classes = Layout.from_document(document["layout"]), document["classes"]
            return cls(layout, weights, bias, document["link"], tuple(classes))
        except (TypeError, KeyError, ValueError) as error:
            raise DataError(
                f"model is no document {FORMAT!r} of a linear scorer, or was changed; write it "
                "again."
            ) from error


def read_scorer(file: Path) -> LinearScorer:
    """Read a file that holds :meth:`LinearScorer.document` as JSON, or raise a DataError."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        raise DataError(
            f"model {str(file)!r} must be the JSON document of a LinearScorer; write it with "
            "json.dump(scorer.document(), file)."
        ) from None
    return LinearScorer.from_document(document)


def linked(scores: Floats, link: Link) -> Floats:
    """Return what scores stand for.

    Parameters
    ----------
    scores : ndarray of shape (n_samples, n_scores)

    Returns
    -------
    ndarray of shape (n_samples,) or (n_samples, n_classes)
        The predicted value, or the probability of each class.
    """
    if link == "identity":
        return scores[:, 0].copy()
    logs = np.column_stack([np.zeros(len(scores)), scores])
    odds = np.exp(logs - logs.max(axis=1, keepdims=True))
    probabilities: Floats = odds / odds.sum(axis=1, keepdims=True)
    return probabilities


def mean_scorer(scorers: Sequence[LinearScorer]) -> LinearScorer:
    """Return the scorer of the mean score of an ensemble: linear again, and no dearer than one.

    For log-odds it is the mean of log-odds, not of probabilities. The caller sees no member's
    score.

    Raises
    ------
    PlanError
        If the members differ in layout, link or classes.
    """
    if not scorers or any(
        (s.layout, s.link, s.classes) != (scorers[0].layout, scorers[0].link, scorers[0].classes)
        for s in scorers
    ):
        raise PlanError(
            "scorers of an ensemble must have the same columns, ranges, link and classes; make "
            "them with the same public bounds."
        )
    weights = np.mean([s.weights for s in scorers], axis=0)
    return replace(scorers[0], weights=weights, bias=np.mean([s.bias for s in scorers], axis=0))


# From models --------------------------------------------------------------------------------------


def linear_scorer(model: Any, bounds: tuple[ArrayLike, ArrayLike] | None = None) -> LinearScorer:
    """Return a model as a linear scorer.

    Parameters
    ----------
    model : DPLinearRegression, DPLogisticRegression, DPNaiveBayes, JobResult, or of scikit-learn
        Fitted. Of scikit-learn: LinearRegression, Ridge or LogisticRegression, alone or in a
        Pipeline behind StandardScaler, MinMaxScaler, MaxAbsScaler or RobustScaler.
    bounds : (low, high), optional
        Public ranges of the columns, two numbers or two sequences; required for scikit-learn's
        models. Ours have their own.

    Raises
    ------
    PlanError
        If the model is no such model; nothing else is linear in what a caller can encode.
    """
    result = model if isinstance(model, JobResult) else getattr(model, "result_", None)
    if isinstance(result, JobResult):
        if bounds is not None:
            raise PlanError("bounds of a private model are its own; leave them out.")
        labels = getattr(model, "classes_", None)
        return _of_result(result, None if labels is None else labels.tolist())
    return _of_sklearn(model, bounds)


def _of_result(result: JobResult, labels: list[Any] | None) -> LinearScorer:
    plan, task = result.plan, result.plan.task
    if not isinstance(task, Linear | Logistic | NaiveBayes):
        raise _refused(f"the task {task.name!r}")
    used = [j for j in range(len(plan.columns)) if j != task.target]
    columns = tuple(_entries_of(plan.columns, task))
    layout = Layout(columns=columns, frac_bits=plan.grid.frac_bits)
    low, high = tuple(c.low for c in columns), tuple(c.high for c in columns)
    box = Grid(low, high, task.frac_bits)

    def score(X: Floats) -> Floats:
        records = np.zeros((len(X), len(plan.columns)), dtype=np.int32)
        records[:, used] = box.encode(X)
        if isinstance(task, Linear):
            return task.predict(result.results, records)[:, None]
        if isinstance(task, Logistic):
            return _against_first(task.decision(result.results, records))
        return _against_first(task.log_joint(result.results, records))

    if isinstance(task, Linear):
        return _probed(layout, score, "identity", ())
    return _probed(layout, score, "log-odds", tuple(labels or task.classes))


def _entries_of(names: Sequence[str], task: Linear | Logistic | NaiveBayes) -> Iterator[Entry]:
    """Yield what each column but the target becomes, as the task itself reads it."""
    labels = iter(() if isinstance(task, NaiveBayes) else task.names)
    for j, (name, low, high) in enumerate(zip(names, task.low, task.high, strict=True)):
        if j == task.target:
            continue
        if isinstance(task, NaiveBayes):
            kind = task.kinds[j]
            bins = task.cells[j] if kind == "binned" else 0
            names_of, square = task.categories[j], kind == "gaussian"
            yield Entry(
                name=name, low=low, high=high, categories=names_of, bins=bins, square=square
            )
        else:  # a column of the design is named "column=category"
            own = [next(labels) for _ in range(task.levels[j] or 1)]
            values = [label.removeprefix(f"{name}=") for label in own] if task.levels[j] else []
            yield Entry(name=name, low=low, high=high, categories=tuple(values))


def _against_first(scores: Floats) -> Floats:
    """Return scores less that of the first class; those of two classes are so already."""
    return scores if scores.shape[1] == 1 else scores[:, 1:] - scores[:, :1]


_SCALERS = ("StandardScaler", "MinMaxScaler", "MaxAbsScaler", "RobustScaler")


def _of_sklearn(model: Any, bounds: tuple[ArrayLike, ArrayLike] | None) -> LinearScorer:
    from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
    from sklearn.pipeline import Pipeline
    from sklearn.utils.validation import check_is_fitted

    *before, last = [step for _, step in model.steps] if type(model) is Pipeline else [model]
    for step in before:
        known = type(step).__name__ in _SCALERS and type(step).__module__.startswith("sklearn.")
        if not known or getattr(step, "clip", False):
            raise _refused(f"a step {type(step).__name__}")
    if type(last) not in (LinearRegression, Ridge, LogisticRegression):
        raise _refused(f"a {type(last).__name__}")
    check_is_fitted(last)
    if bounds is None:
        raise PlanError("bounds must be given: public ranges of the columns, low and high.")
    n_columns = int(model.n_features_in_)
    try:
        low, high = (np.broadcast_to(np.asarray(end, float), n_columns).tolist() for end in bounds)
    except ValueError:
        raise PlanError(f"bounds must be a low and a high for {n_columns} columns.") from None
    names = getattr(model, "feature_names_in_", [f"x{j}" for j in range(n_columns)])
    columns = zip(map(str, names), low, high, strict=True)
    layout = Layout(columns=tuple(Entry(name=n, low=a, high=b) for n, a, b in columns))
    if isinstance(last, LogisticRegression):
        classes = tuple(last.classes_.tolist())
        if len(classes) > 2 and (
            last.solver == "liblinear" or getattr(last, "multi_class", None) == "ovr"
        ):
            raise _refused("one model for each class, whose probabilities are no softmax")
        answer, link = model.decision_function, "log-odds"
    else:
        classes, answer, link = (), model.predict, "identity"

    def score(X: Floats) -> Floats:
        with warnings.catch_warnings():  # a model of a DataFrame asks for names
            warnings.simplefilter("ignore", UserWarning)
            found = np.asarray(answer(X), dtype=np.float64)
        if found.ndim == 2 and link == "identity" and found.shape[1] > 1:
            raise _refused("several targets")
        return _against_first(found.reshape(len(X), -1))

    return _probed(layout, score, link, classes)  # type: ignore[arg-type]  # one of two words


def _refused(what: str) -> PlanError:
    return PlanError(
        f"model has {what}, which cannot be scored under encryption: one multiplication is all "
        "there is; use a linear, logistic or naive Bayes model, or score on shares."
    )


def _probed(
    layout: Layout,
    score: Callable[[Floats], Floats],
    link: Link,
    classes: tuple[Any, ...],
) -> LinearScorer:
    """Return the weights of a model that is linear in the entries; `score` takes data units."""
    middle = np.array([_value(column, 0.5) for column in layout.columns])
    bias = score(middle[None])[0]
    weights = np.zeros((len(bias), layout.width))
    # The entries of the middle row are not all zero: its first category or bin may be another.
    base = layout.encode(middle[None])[0]
    place = 0
    for j, column in enumerate(layout.columns):
        n = len(column.categories) or column.bins
        ends = [_value(column, (k + 0.5) / n) for k in range(n)] if n else [column.low, column.high]
        rows = np.tile(middle, (len(ends), 1))
        rows[:, j] = ends
        # One equation for each probe says what the entries of this column add.
        own = slice(place, place + column.width)
        entries = layout.encode(rows)[:, own] - base[own]
        found = np.linalg.lstsq(entries, score(rows) - bias, rcond=None)[0]
        weights[:, own] = found.T
        place += column.width
    scorer = LinearScorer(layout, weights, bias - weights @ base, link, classes)
    shares = public_generator("linear-scorer").random((_PROBES, len(layout.columns)))
    rows = np.array([list(map(_value, layout.columns, share)) for share in shares])
    off = np.abs(scorer.scores(rows) - score(rows)).max()
    if not off <= _AGREE * max(1.0, scorer.score_bound):
        raise _refused("scores that are not linear in its columns")
    return scorer


def _value(column: Entry, share: float) -> float:
    """Return the value at a share of a column's range, a category's number where it has any."""
    if column.categories:
        return float(int(share * len(column.categories)))
    return column.low + share * (column.high - column.low)


# Cells and documents ------------------------------------------------------------------------------


def _cells(X: Any, columns: Sequence[Entry]) -> list[Floats]:
    """Return the columns of a table as numbers: those of categories, NaN for an unknown one."""
    names = [column.name for column in columns]
    if named := hasattr(X, "columns") and hasattr(X, "iloc"):
        missing = [name for name in names if name not in X.columns]
        if missing:
            raise DataError(f"columns {missing} are missing; the model has {names}.")
    table = np.asarray(X[names] if named else X)
    if table.ndim != 2 or table.shape[1] != len(names) or not len(table):
        raise DataError(
            f"rows must be a table of {len(names)} columns and at least one row, got shape "
            f"{table.shape}."
        )
    by_name = named or table.dtype.kind not in "fiub"
    return [_numbers(*pair, by_name) for pair in zip(columns, table.T, strict=True)]


def _numbers(column: Entry, values: NDArray[Any], by_name: bool) -> Floats:
    if column.categories and by_name:
        known = {name: code for code, name in enumerate(column.categories)}
        return np.array([known.get(_name(value), np.nan) for value in values.tolist()])
    try:
        return values.astype(np.float64)
    except (TypeError, ValueError):
        raise DataError(f"column {column.name!r} must hold numbers.") from None


def _name(value: Any) -> str:
    """Return the category that a cell names: 1, 1.0 and True are "1"."""
    whole = isinstance(value, bool) or (isinstance(value, float) and value.is_integer())
    return str(int(value) if whole else value)
