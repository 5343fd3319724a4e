"""Predictions of a model of another package, as a function of each record alone.

One record may change the sums of an evaluation only by a bounded amount, so it must not change the
scores of other records. A model that predicts a whole table can violate this. Matrix products round
a row differently in tables of different lengths, and weights can amplify the last bit to a whole
score. Two cases follow:

- Models of the classes in :func:`record_functions` are scored by this package's code. It copies a
  model's numbers and then processes all rows one operation at a time, independently for each
  element. Sums run over features in a fixed order. Exponentials are computed for one number at a
  time, since vectorised ones may differ at the end of an array. No matrix product is used.
- Any other object predicts one record per call (:func:`one_by_one`), in a buffer that does not
  depend on the number of records. The guarantee **assumes** that it is a function of the record; an
  object that stores earlier calls is not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from math import exp, tanh
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import get_tags

from cloister.app.progress import watched
from cloister.core.arrays import Floats, Integers
from cloister.core.errors import DataError

Score = Callable[[Floats], Floats]
"""A function from rows, shape (n_samples, n_features), to scores, shape (n_samples, n_outputs)."""

_ROWS = 4096  # processed together, to limit memory; each row counts alone
_COPIES = 2  # of a record, for a model that refuses a single row
_ALIGNED = 64  # bytes


@dataclass(frozen=True)
class RowCode:
    """Scoring code of this package for a known model.

    For a classifier, `score` returns the probability of each class, or one margin that is above 0
    for the last of two classes. For a regressor it returns the prediction.
    """

    n_features: int
    score: Score

    def __call__(self, rows: Floats) -> Floats:
        """Return the scores of rows; shape (n_samples, n_outputs)."""
        with np.errstate(all="ignore"):  # an overflow gives a score that counts as missing
            blocks = [self.score(rows[at : at + _ROWS]) for at in range(0, len(rows), _ROWS)]
            return np.concatenate(blocks) if blocks else self.score(rows)

    def labels(self, rows: Floats) -> Integers:
        """Return the index of the predicted class of each row; -1 for one without scores."""
        scores = self(rows)
        best = scores[:, 0] > 0 if scores.shape[1] == 1 else scores.argmax(axis=1)
        return np.where(np.isnan(scores).any(axis=1), -1, best)


def record_functions(model: Any) -> RowCode | None:
    """Return the scoring code for a fitted model of a known class, else None.

    The known classes of scikit-learn are:

    - linear and logistic regression, ridge, lasso, elastic net, linear support vector machines;
    - Gaussian naive Bayes, and the dummy classifier that predicts the shares of classes;
    - decision trees, random and extra forests, gradient boosting, also over histograms if no
      column is categorical, multi-layer perceptrons;
    - a pipeline of standard or min-max scalers before one of these.

    A subclass is not known, because it may override any method. The model's numbers are copied
    here, before a record is read, and no method of the model is called with a record. If the model
    refuses missing cells by its tags, the scores of a row with one are NaN.
    """
    if not type(model).__module__.startswith("sklearn."):
        return None
    try:
        score = _score_of(model)
        if score is None:
            return None
        score = score if _accepts_missing(model) else _of_whole_rows(score)
        return RowCode(int(model.n_features_in_), score)
    except (AttributeError, TypeError, ValueError, LookupError):
        return None  # not fitted, several outputs, or the attributes of another version


def _accepts_missing(model: Any) -> bool:
    """Return True if a model, or each step of a pipeline, accepts NaN by its tags."""
    steps = [step for _, step in getattr(model, "steps", [("", model)]) if hasattr(step, "fit")]
    tags = [get_tags(step) for step in steps]
    return all(one.input_tags.allow_nan or one.no_validation for one in tags)


def _of_whole_rows(score: Score) -> Score:
    """Return the scores of rows; NaN for a row that has a cell without a number."""

    def whole(rows: Floats) -> Floats:
        is_whole = np.isfinite(rows).all(axis=1, keepdims=True)
        return np.where(is_whole, score(rows), np.nan)

    return whole


def one_by_one(ask: Callable[[Any], Any], rows: NDArray[Any]) -> NDArray[Any]:
    """Return the prediction of each row, with one call per record in one fixed buffer.

    Parameters
    ----------
    ask : function
        From a table of one row, shape (1, n_features), to an array with one entry per row. If it
        raises, it is called with two copies of the record.
    rows : ndarray of shape (n_samples, n_features)

    Raises
    ------
    DataError
        If it raises for a record, or does not return one entry per row.
    """
    buffers = {
        dtype: _aligned((_COPIES, rows.shape[1]), dtype) for dtype in {rows.dtype, np.dtype(float)}
    }
    answers = []
    for row in watched(rows, "records"):
        # In a table of objects, the type of a row of numbers must not depend on other rows.
        is_numbers = rows.dtype == object and all(isinstance(_cell(cell), float) for cell in row)
        buffer = buffers[np.dtype(float) if is_numbers else rows.dtype]
        buffer[:] = row
        answers.append(_answer(ask, buffer[:1], buffer))
    return _stacked(answers)


def frame_by_frame(ask: Callable[[Any], Any], table: Any) -> NDArray[Any]:
    """Return the prediction of each row of a DataFrame, with one new frame per record.

    Numbers become floats and other cells stay unchanged, so that the type of a column does not
    depend on other records.
    """
    import pandas as pd

    names = list(table.columns)
    answers = []
    rows = table.itertuples(index=False, name=None)
    for cells in watched(rows, "records", len(table)):
        record = {name: [_cell(cell)] for name, cell in zip(names, cells, strict=True)}
        copies = {name: cell * _COPIES for name, cell in record.items()}
        answers.append(_answer(ask, pd.DataFrame(record), pd.DataFrame(copies)))
    return _stacked(answers)


def _stacked(answers: list[NDArray[Any]]) -> NDArray[Any]:
    """Return predictions as one array; as objects if their kinds differ."""
    if len({"f" if answer.dtype.kind in "biuf" else answer.dtype.kind for answer in answers}) > 1:
        answers = [answer.astype(object) for answer in answers]
    return np.stack(answers) if answers else np.zeros((0,))


def _answer(ask: Callable[[Any], Any], record: Any, copies: Any) -> NDArray[Any]:
    """Return a copy of the prediction of a record."""
    for table in (record, copies):
        try:
            answer = np.asarray(ask(table))
        except Exception:  # not shown, because its text may quote the record
            continue
        if answer.ndim and len(answer) == len(table):
            return np.array(answer[0])  # a copy, because the model may reuse its buffer
    raise DataError(
        "model must return one row for a table of one record, or two rows for two copies of it; "
        "wrap it in an object whose predict and predict_proba do this."
    )


def _cell(cell: Any) -> Any:
    return float(cell) if isinstance(cell, bool | int | float | np.bool_ | np.number) else cell


def _aligned(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Return zeros at an address that is a multiple of 64, on which BLAS may depend."""
    if np.dtype(dtype).hasobject:
        return np.zeros(shape, dtype=dtype)
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + _ALIGNED, dtype=np.uint8)
    first = -raw.ctypes.data % _ALIGNED
    return np.asarray(raw[first : first + size].view(dtype).reshape(shape))


# Known classes ------------------------------------------------------------------------------------


def _numbers(values: Any) -> Floats:
    """Return a copy of numbers as a plain array, from any class of array."""
    return np.array(values, dtype=np.float64)


def _product(rows: Floats, weights: Floats, start: Floats) -> Floats:
    """Return ``start + rows @ weights``, summed feature by feature for each row alone."""
    total = np.tile(start, (len(rows), 1))
    for j, weight in enumerate(weights):
        total += rows[:, j : j + 1] * weight
    return total


def _each(function: Callable[[float], float], values: Floats) -> Floats:
    """Apply a function to one number at a time."""
    results = np.fromiter(map(function, values.ravel().tolist()), np.float64, values.size)
    return results.reshape(values.shape)


def _logistic(z: float) -> float:
    return 1 / (1 + exp(-z)) if z >= 0 else exp(z) / (1 + exp(z))


def _exponential(z: float) -> float:
    return exp(min(z, 709.0))  # a larger one raises an error; NaN stays


def _two(z: Floats) -> Floats:
    """Return the probabilities of two classes from the log-odds of the last; shape (n, 2)."""
    last = _each(_logistic, z)
    return np.concatenate([1 - last, last], axis=1)


def _softmax(z: Floats) -> Floats:
    odds = _each(exp, np.minimum(z - z.max(axis=1, keepdims=True), 0.0))  # cannot overflow
    total = np.zeros(len(z))
    for k in range(z.shape[1]):
        total += odds[:, k]
    return odds / total[:, None]


def _linear(model: Any) -> Score:
    weights = np.atleast_2d(_numbers(model.coef_)).T
    start = np.broadcast_to(_numbers(model.intercept_).ravel(), (weights.shape[1],)).copy()
    return lambda rows: _product(rows, weights, start)


def _logistic_regression(model: Any) -> Score | None:
    margins = _linear(model)
    if len(model.coef_) == 1:
        return lambda rows: _two(margins(rows))
    if model.solver == "liblinear" or getattr(model, "multi_class", "auto") == "ovr":
        return None  # one-versus-rest models normalise probabilities differently
    return lambda rows: _softmax(margins(rows))


def _classifies(model: Any) -> bool:
    return type(model).__name__.endswith("Classifier")  # its class is one of _CODE


def _trees(model: Any) -> Score:
    """Return a function for the mean of the trees of a forest, or for one tree."""
    members = getattr(model, "estimators_", [model])
    trees = [_tree(member.tree_, classifies=_classifies(model)) for member in members]

    def score(rows: Floats) -> Floats:
        return np.asarray(sum(tree(rows) for tree in trees) / len(trees))

    return score


def _tree(tree: Any, *, classifies: bool) -> Score:
    """Return a function from rows to the values of their leaves; shares for a classifier."""
    value = _numbers(tree.value)
    if value.shape[1] != 1:
        raise ValueError("several outputs")
    value = value[:, 0, :]
    if classifies:
        value = value / value.sum(axis=1, keepdims=True)
    children = tree.children_left, tree.children_right
    splits = tree.feature, tree.threshold, tree.missing_go_to_left
    leaves = _leaves(*children, *splits, n_features=int(tree.n_features))
    # scikit-learn compares in float32.
    return lambda rows: np.asarray(value[leaves(rows.astype(np.float32))])


def _leaves(
    left: Any, right: Any, feature: Any, threshold: Any, missing_left: Any, *, n_features: int
) -> Callable[[NDArray[Any]], Integers]:
    """Return a function from rows to their leaves; `left` is negative at a leaf."""
    left, right, feature = (np.array(one, dtype=np.int64) for one in (left, right, feature))
    threshold, missing_left = _numbers(threshold), np.array(missing_left, dtype=bool)
    inner, nodes = left >= 0, len(left)
    # A tree with invalid indices would read other memory, or never reach a leaf.
    if not ((left < nodes) & (right < nodes) & (right >= -1)).all() or (right[inner] < 0).any():
        raise ValueError("a child that does not exist")
    if not (feature[inner] >= 0).all() or (feature >= n_features).any():
        raise ValueError("a feature that does not exist")

    def leaves(rows: NDArray[Any]) -> Integers:
        all_rows = np.arange(len(rows))
        at = np.zeros(len(rows), dtype=np.int64)
        for _ in range(nodes):
            if not inner[at].any():
                break
            x = rows[all_rows, np.maximum(feature[at], 0)]
            goes_left = np.where(np.isnan(x), missing_left[at], x <= threshold[at])
            at = np.where(inner[at], np.where(goes_left, left[at], right[at]), at)
        return at

    return leaves


def _boosted(model: Any) -> Score:
    if not isinstance(model.init_, str) and type(model.init_).__module__ != "sklearn.dummy":
        raise ValueError("a first prediction by another model")
    # The first prediction is the same for all records, so no record is needed for it.
    start = _numbers(model._raw_predict_init(np.zeros((1, model.n_features_in_))))[0]
    trees = [
        [_tree(member.tree_, classifies=False) for member in step] for step in model.estimators_
    ]
    raw = _summed(start, trees, float(model.learning_rate))
    if not _classifies(model):
        return raw
    factor = 2.0 if model.loss == "exponential" else 1.0
    if len(start) == 1:
        return lambda rows: _two(factor * raw(rows))
    return lambda rows: _softmax(raw(rows))


def _summed(start: Floats, trees: list[list[Score]], rate: float) -> Score:
    """Return the sum of all steps, each of one tree for each output."""

    def raw(rows: Floats) -> Floats:
        total = np.tile(start, (len(rows), 1))
        for step in trees:
            for k, tree in enumerate(step):
                total[:, k] += rate * tree(rows)[:, 0]
        return total

    return raw


def _histogram_boosted(model: Any) -> Score:
    if model._preprocessor is not None:
        raise ValueError("categories")
    n_features = int(model.n_features_in_)
    start = _numbers(model._baseline_prediction).ravel()
    trees = [[_histogram_tree(one.nodes, n_features) for one in step] for step in model._predictors]
    raw = _summed(start, trees, 1.0)  # the values of leaves include the rate
    if _classifies(model):
        return lambda rows: _two(raw(rows)) if len(start) == 1 else _softmax(raw(rows))
    if model.loss in ("poisson", "gamma"):
        return lambda rows: _each(_exponential, raw(rows))
    if model.loss not in ("squared_error", "absolute_error", "quantile"):
        raise ValueError("an unknown link")
    return raw


def _histogram_tree(nodes: Any, n_features: int) -> Score:
    """Return a function from rows to the values of their leaves; it compares in float64."""
    left = np.where(nodes["is_leaf"], -1, nodes["left"].astype(np.int64))
    if nodes["is_categorical"].any():
        raise ValueError("categories")
    value = _numbers(nodes["value"])[:, None]
    splits = (nodes[name] for name in ("feature_idx", "num_threshold", "missing_go_to_left"))
    leaves = _leaves(left, nodes["right"], *splits, n_features=n_features)
    return lambda rows: np.asarray(value[leaves(rows)])


_ACTIVATIONS: dict[str, Callable[[Floats], Floats]] = {
    "identity": lambda z: z,
    "relu": lambda z: np.where(z <= 0, 0.0, z),
    "tanh": lambda z: _each(tanh, z),
    "logistic": lambda z: _each(_logistic, z),
}


_OUTPUTS = {"identity": _ACTIVATIONS["identity"], "logistic": _two, "softmax": _softmax}


def _perceptron(model: Any) -> Score:
    layers = [
        (_numbers(weights), _numbers(start))
        for weights, start in zip(model.coefs_, model.intercepts_, strict=True)
    ]
    hidden, last = _ACTIVATIONS[model.activation], _OUTPUTS[model.out_activation_]
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


def _prior(model: Any) -> Score | None:
    prior = _numbers(model.class_prior_)
    return (lambda rows: np.tile(prior, (len(rows), 1))) if model.strategy == "prior" else None


def _pipeline(model: Any) -> Score | None:
    *scalers, (_, last) = model.steps
    active = [step for _, step in scalers if step is not None and step != "passthrough"]
    steps = [_scaling_of(step) for step in active] + [_score_of(last)]
    if None in steps:
        return None

    def score(rows: Floats) -> Floats:
        for step in filter(None, steps):
            rows = step(rows)
        return rows

    return score


def _scaling_of(step: Any) -> Score | None:
    from sklearn import preprocessing

    if type(step) is preprocessing.StandardScaler:
        return _standard(step)
    return _min_max(step) if type(step) is preprocessing.MinMaxScaler else None


def _standard(scaler: Any) -> Score:
    mean = _numbers(0.0 if scaler.mean_ is None else scaler.mean_)
    scale = _numbers(1.0 if scaler.scale_ is None else scaler.scale_)
    return lambda rows: (rows - mean) / scale


def _min_max(scaler: Any) -> Score:
    scale, shift = _numbers(scaler.scale_), _numbers(scaler.min_)
    low, high = map(float, scaler.feature_range) if scaler.clip else (-np.inf, np.inf)
    return lambda rows: np.clip(rows * scale + shift, low, high)


_CODE: dict[Callable[[Any], Score | None], str] = {
    _pipeline: "pipeline.Pipeline",
    _logistic_regression: "linear_model.LogisticRegression linear_model.LogisticRegressionCV",
    _linear: "svm.LinearSVC linear_model.RidgeClassifier linear_model.LinearRegression "
    "linear_model.Ridge linear_model.Lasso linear_model.ElasticNet",
    _trees: "tree.DecisionTreeClassifier tree.DecisionTreeRegressor "
    "ensemble.RandomForestClassifier ensemble.ExtraTreesClassifier "
    "ensemble.RandomForestRegressor ensemble.ExtraTreesRegressor",
    _boosted: "ensemble.GradientBoostingClassifier ensemble.GradientBoostingRegressor",
    _histogram_boosted: "ensemble.HistGradientBoostingClassifier "
    "ensemble.HistGradientBoostingRegressor",
    _perceptron: "neural_network.MLPClassifier neural_network.MLPRegressor",
    _gaussian: "naive_bayes.GaussianNB",
    _prior: "dummy.DummyClassifier",
}
"""The scoring code of each class of scikit-learn."""


def _score_of(model: Any) -> Score | None:
    """Return the scoring code for a model, by its exact class."""
    for code, paths in _CODE.items():
        for path in paths.split():
            module, _, name = path.partition(".")
            if type(model).__name__ == name:
                same = type(model) is getattr(import_module(f"sklearn.{module}"), name)
                return code(model) if same else None
    return None
