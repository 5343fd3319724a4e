"""What a model that is not ours tells of a record, as a function of that record alone.

One record may move the sums of an evaluation by a bounded amount only, so it must not move the
scores of others. A model that is handed a whole table can do that: matrix products round a row
differently in tables of different lengths, and weights can be chosen that make a score of the last
bit. So:

- The classes that :func:`row_code` knows are scored by our own code. It copies a model's numbers,
  then works on all rows one operation at a time, where each element of an array is by itself:
  sums run over features in a fixed order, and exponentials are taken one number at a time, since
  vectorised ones may differ in the tail of an array. No product of matrices is asked for.
- Any other object is asked about one record a call (:func:`one_by_one`), in a buffer that is the
  same however many records there are. It is **assumed** to be a function of the record; an object
  that remembers earlier calls is none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, tanh
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloister.errors import DataError
from cloister.estimators.tables import Floats

Score = Callable[[Floats], Floats]
"""From rows of shape (n_samples, n_features) to scores of shape (n_samples, n_outputs)."""

_ROWS = 4096  # of a table that are worked on together; each is by itself
_COPIES = 2  # of a record, for a model that refuses a single row
_ALIGNED = 64  # bytes


@dataclass(frozen=True)
class RowCode:
    """A known model, as our own code scores it.

    Parameters
    ----------
    n_features : int
    score : function
        Of a classifier, the probability of each class or one margin, which is above 0 for the last
        of two classes; of a regressor, the number.
    """

    n_features: int
    score: Score

    def __call__(self, rows: Floats) -> Floats:
        """Return the scores of rows; shape (n_samples, n_outputs)."""
        with np.errstate(all="ignore"):  # what overflows is no number, and counts as such
            parts = [self.score(rows[at : at + _ROWS]) for at in range(0, len(rows), _ROWS)]
            return np.concatenate(parts) if parts else self.score(rows)

    def labels(self, rows: Floats) -> NDArray[np.int64]:
        """Return the number of the class that each row is told to be."""
        scores = self(rows)
        if scores.shape[1] == 1:
            return (scores[:, 0] > 0).astype(np.int64)
        return np.asarray(scores.argmax(axis=1))


def row_code(model: Any) -> RowCode | None:
    """Return our own code for a fitted model of a class that we know, else None.

    Parameters
    ----------
    model : object
        Known are, of scikit-learn: linear and logistic regression, ridge, lasso, elastic net,
        linear support vectors, Gaussian naive Bayes, decision trees, random and extra forests,
        gradient boosting, multi-layer perceptrons, the dummy that tells the shares of classes; and
        a pipeline of standard or min-max scalers before one of these. A subclass may override
        anything, and is not known.

    Notes
    -----
    The model's numbers are copied here, before a record is looked at, and none of its methods is
    called on one.
    """
    if not type(model).__module__.startswith("sklearn."):
        return None
    try:
        score = _score_of(model)
    except (AttributeError, TypeError, ValueError, IndexError):
        return None  # not fitted, several outputs, or another version's attributes
    return None if score is None else RowCode(int(model.n_features_in_), score)


def one_by_one(ask: Callable[[Any], Any], rows: NDArray[Any]) -> NDArray[Any]:
    """Return the answer to each row, asked about one record a call in one fixed buffer.

    Parameters
    ----------
    ask : function
        From a table of one row, shape (1, n_features), to an array with one entry a row. Where it
        raises, it is asked about a table of two copies of the record.
    rows : ndarray of shape (n_samples, n_features)

    Returns
    -------
    ndarray with n_samples entries

    Raises
    ------
    DataError
        If it refuses a record, or does not answer each row.
    """
    buffer = aligned((_COPIES, rows.shape[1]), rows.dtype)
    answers = []
    for row in rows:
        buffer[:] = row
        answers.append(_answer(ask, buffer[:1], buffer))
    return np.stack(answers) if answers else np.zeros((0,))


def frame_by_frame(ask: Callable[[Any], Any], table: Any) -> NDArray[Any]:
    """Return the answer to each row of a DataFrame, asked about one new frame a record.

    Cells that are numbers become floats and others stay as they are, so that the type of a column
    does not tell of other records.
    """
    import pandas as pd

    names = list(table.columns)
    answers = []
    for cells in table.itertuples(index=False, name=None):
        one = {name: [_cell(cell)] for name, cell in zip(names, cells, strict=True)}
        copies = {name: cell * _COPIES for name, cell in one.items()}
        answers.append(_answer(ask, pd.DataFrame(one), pd.DataFrame(copies)))
    return np.stack(answers) if answers else np.zeros((0,))


def _answer(ask: Callable[[Any], Any], one: Any, copies: Any) -> NDArray[Any]:
    """Return a copy of the answer to a record."""
    for table in (one, copies):
        try:
            told = np.asarray(ask(table))
        except Exception:  # whatever it is; its text may hold the record
            continue
        if told.ndim and len(told) == len(table):
            return np.array(told[0])
    raise DataError(
        "model must answer a table of one record with one row, or of two copies of it with two; "
        "wrap it in an object whose predict and predict_proba do."
    )


def _cell(cell: Any) -> Any:
    return float(cell) if isinstance(cell, bool | int | float | np.bool_ | np.number) else cell


def aligned(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Return an array of zeros that begins on a border of 64 bytes, as BLAS may care."""
    if np.dtype(dtype).hasobject:
        return np.zeros(shape, dtype=dtype)
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + _ALIGNED, dtype=np.uint8)
    first = -raw.ctypes.data % _ALIGNED
    found: NDArray[Any] = raw[first : first + size].view(dtype).reshape(shape)
    return found


# The classes that are known -----------------------------------------------------------------------


def _score_of(model: Any) -> Score | None:
    """Return the code for a model, by its exact class."""
    from sklearn import (
        dummy,
        ensemble,
        linear_model,
        naive_bayes,
        neural_network,
        pipeline,
        svm,
        tree,
    )

    kind = type(model)
    if kind is pipeline.Pipeline:
        return _pipeline(list(model.steps))
    if kind in (linear_model.LogisticRegression, linear_model.LogisticRegressionCV):
        return _logistic_regression(model)
    if kind in (
        svm.LinearSVC,
        linear_model.RidgeClassifier,
        linear_model.LinearRegression,
        linear_model.Ridge,
        linear_model.Lasso,
        linear_model.ElasticNet,
    ):
        return _linear(model.coef_, model.intercept_)
    if kind in (tree.DecisionTreeClassifier, tree.DecisionTreeRegressor):
        return _mean([_tree(model.tree_, kind is tree.DecisionTreeClassifier)])
    if kind in (ensemble.RandomForestClassifier, ensemble.ExtraTreesClassifier):
        return _mean([_tree(part.tree_, True) for part in model.estimators_])
    if kind in (ensemble.RandomForestRegressor, ensemble.ExtraTreesRegressor):
        return _mean([_tree(part.tree_, False) for part in model.estimators_])
    if kind in (ensemble.GradientBoostingClassifier, ensemble.GradientBoostingRegressor):
        return _boosted(model, classifies=kind is ensemble.GradientBoostingClassifier)
    if kind in (neural_network.MLPClassifier, neural_network.MLPRegressor):
        return _perceptron(model)
    if kind is naive_bayes.GaussianNB:
        return _gaussian(model)
    if kind is dummy.DummyClassifier and model.strategy == "prior":
        prior = _numbers(model.class_prior_)
        return lambda rows: np.tile(prior, (len(rows), 1))
    return None


def _numbers(values: Any) -> Floats:
    """Return a plain copy of numbers, whatever class of array holds them."""
    return np.array(values, dtype=np.float64)


def _product(rows: Floats, weights: Floats, start: Floats) -> Floats:
    """Return ``start + rows @ weights``, feature by feature; each row by itself.

    Parameters
    ----------
    rows : ndarray of shape (n_samples, n_features)
    weights : ndarray of shape (n_features, n_outputs)
    start : ndarray of shape (n_outputs,)
    """
    total = np.tile(start, (len(rows), 1))
    for j, weight in enumerate(weights):
        total += rows[:, j : j + 1] * weight
    return total


def _each(function: Callable[[float], float], values: Floats) -> Floats:
    """Apply a function to one number at a time."""
    told: Floats = np.fromiter(map(function, values.ravel().tolist()), np.float64, values.size)
    return told.reshape(values.shape)


def _logistic(z: float) -> float:
    return 1 / (1 + exp(-z)) if z >= 0 else exp(z) / (1 + exp(z))


def _two(z: Floats) -> Floats:
    """Return the probabilities of two classes from the log-odds of the last; shape (n, 2)."""
    last = _each(_logistic, z)
    return np.concatenate([1 - last, last], axis=1)


def _softmax(z: Floats) -> Floats:
    odds = _each(exp, np.minimum(z - z.max(axis=1, keepdims=True), 0.0))
    total = np.zeros(len(z))
    for k in range(z.shape[1]):
        total += odds[:, k]
    return odds / total[:, None]


def _linear(coef: Any, intercept: Any) -> Score:
    weights = np.atleast_2d(_numbers(coef)).T
    start = np.broadcast_to(_numbers(intercept).ravel(), (weights.shape[1],)).copy()
    return lambda rows: _product(rows, weights, start)


def _logistic_regression(model: Any) -> Score | None:
    margins = _linear(model.coef_, model.intercept_)
    if len(model.coef_) == 1:
        return lambda rows: _two(margins(rows))
    if model.solver == "liblinear" or getattr(model, "multi_class", "auto") == "ovr":
        return None  # one class against the rest
    return lambda rows: _softmax(margins(rows))


def _tree(tree: Any, classifies: bool) -> Score:
    """Return a function from rows to the values of their leaves, shares where it classifies."""
    left, right, feature = (
        np.array(part, dtype=np.int64)
        for part in (tree.children_left, tree.children_right, tree.feature)
    )
    threshold, value = _numbers(tree.threshold), _numbers(tree.value)
    missing_left = np.array(tree.missing_go_to_left, dtype=bool)
    if value.shape[1] != 1:
        raise ValueError("several outputs")
    value, nodes = value[:, 0, :], len(left)
    if classifies:
        value = value / value.sum(axis=1, keepdims=True)
    inner = left >= 0
    if not ((left < nodes) & (right < nodes) & (right >= -1)).all() or (right[inner] < 0).any():
        raise ValueError("children that are none")
    if not (feature[inner] >= 0).all() or (feature >= int(tree.n_features)).any():
        raise ValueError("features that are none")

    def leaves(rows: Floats) -> Floats:
        everybody = np.arange(len(rows))
        narrow = rows.astype(np.float32)  # as scikit-learn compares
        at = np.zeros(len(rows), dtype=np.int64)
        for _ in range(nodes):
            if not inner[at].any():
                break
            x = narrow[everybody, np.maximum(feature[at], 0)]
            goes_left = np.where(np.isnan(x), missing_left[at], x <= threshold[at])
            at = np.where(inner[at], np.where(goes_left, left[at], right[at]), at)
        told: Floats = value[at]
        return told

    return leaves


def _mean(trees: Sequence[Score]) -> Score:
    """Return the mean of trees' answers."""

    def score(rows: Floats) -> Floats:
        total = trees[0](rows)
        for tree in trees[1:]:
            total = total + tree(rows)
        mean: Floats = total / len(trees)
        return mean

    return score


def _boosted(model: Any, *, classifies: bool) -> Score:
    if not isinstance(model.init_, str) and type(model.init_).__module__ != "sklearn.dummy":
        raise ValueError("a first guess by another model")
    # the first guess is the same for each record, so it is asked about none
    start = _numbers(model._raw_predict_init(np.zeros((1, model.n_features_in_))))[0]
    trees = [[_tree(part.tree_, False) for part in step] for step in model.estimators_]
    rate = float(model.learning_rate)

    def raw(rows: Floats) -> Floats:
        total = np.tile(start, (len(rows), 1))
        for step in trees:
            for k, tree in enumerate(step):
                total[:, k] += rate * tree(rows)[:, 0]
        return total

    if not classifies:
        return raw
    factor = 2.0 if model.loss == "exponential" else 1.0
    if len(start) == 1:
        return lambda rows: _two(factor * raw(rows))
    return lambda rows: _softmax(raw(rows))


_ACTIVATIONS: dict[str, Callable[[Floats], Floats]] = {
    "identity": lambda z: z,
    "relu": lambda z: np.where(z <= 0, 0.0, z),
    "tanh": lambda z: _each(tanh, z),
    "logistic": lambda z: _each(_logistic, z),
}


def _perceptron(model: Any) -> Score:
    layers = [
        (_numbers(weights), _numbers(start))
        for weights, start in zip(model.coefs_, model.intercepts_, strict=True)
    ]
    hidden = _ACTIVATIONS.get(str(model.activation))
    last = {"identity": _ACTIVATIONS["identity"], "logistic": _two, "softmax": _softmax}.get(
        str(model.out_activation_)
    )
    if hidden is None or last is None:
        raise ValueError("another activation")
    if model.out_activation_ == "logistic" and layers[-1][0].shape[1] != 1:
        raise ValueError("several labels")

    def score(rows: Floats) -> Floats:
        for weights, start in layers[:-1]:
            rows = hidden(_product(rows, weights, start))
        return last(_product(rows, *layers[-1]))

    return score


def _gaussian(model: Any) -> Score:
    means, variances = _numbers(model.theta_), _numbers(model.var_)
    start = np.log(_numbers(model.class_prior_))
    start -= 0.5 * np.log(2 * np.pi * variances).sum(axis=1)

    def score(rows: Floats) -> Floats:
        total = np.tile(start, (len(rows), 1))
        for j in range(rows.shape[1]):
            total -= 0.5 * (rows[:, j : j + 1] - means[:, j]) ** 2 / variances[:, j]
        return _softmax(total)

    return score


def _pipeline(steps: list[tuple[str, Any]]) -> Score | None:
    from sklearn import preprocessing

    *before, (_, last) = steps
    score = _score_of(last)
    if score is None:
        return None
    changes: list[Score] = []
    for _, step in before:
        if type(step) is preprocessing.StandardScaler:
            changes.append(_standard(step))
        elif type(step) is preprocessing.MinMaxScaler:
            changes.append(_min_max(step))
        elif step is not None and step != "passthrough":
            return None

    def scaled(rows: Floats) -> Floats:
        for change in changes:
            rows = change(rows)
        return score(rows)

    return scaled


def _standard(scaler: Any) -> Score:
    mean = _numbers(0.0 if scaler.mean_ is None else scaler.mean_)
    scale = _numbers(1.0 if scaler.scale_ is None else scaler.scale_)
    return lambda rows: (rows - mean) / scale


def _min_max(scaler: Any) -> Score:
    scale, shift = _numbers(scaler.scale_), _numbers(scaler.min_)
    low, high = map(float, scaler.feature_range) if scaler.clip else (-np.inf, np.inf)
    return lambda rows: np.clip(rows * scale + shift, low, high)
