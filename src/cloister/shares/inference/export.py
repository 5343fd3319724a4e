"""Export of released models for scoring without cloister: to scikit-learn or ONNX.

In both, a column of numbers is clipped to its public range and scaled. Other columns become one
entry for each category or bin, and scores are weighted sums of entries. Nothing is rounded to the
grid, so a score differs from the model's own by the effect of half a grid step.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import methodcaller
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloister.app.release import Release
from cloister.core.arrays import Floats, Results
from cloister.core.errors import DataError, PlanError
from cloister.estimators.tables import as_labels
from cloister.hazmat.fixedpoint import Grid
from cloister.protocol.task import Task
from cloister.shares.inference.linear import Entry, Label, scorer_of_task
from cloister.tasks.preparation.pipeline import Pipeline
from cloister.tasks.preparation.scaled import Scaled
from cloister.tasks.supervised.linear import Linear
from cloister.tasks.supervised.logistic import Logistic
from cloister.tasks.supervised.naive_bayes import NaiveBayes
from cloister.tasks.supervised.shapes import ShapesClassifier

_OUTPUTS = {"prediction", "probabilities"}
_OPSET, _IR = 19, 9  # of ONNX: the first that compares text


@dataclass(frozen=True)
class _Column:
    """A column; one of numbers becomes ``(clip(x, low, high) - centre) / half``.

    Bins have equal width, unless `edges` between them are given, scaled like the numbers.
    """

    entry: Entry
    low: float
    high: float
    centre: float
    half: float
    edges: tuple[float, ...] = ()

    @property
    def inner(self) -> Floats:
        """Edges between the bins, scaled."""
        return np.array(self.edges or np.linspace(-1, 1, self.entry.bins + 1)[1:-1])

    @property
    def cells(self) -> list[Any]:
        """Categories or bins of the column; those of a boolean are numbers."""
        names = self.entry.categories
        text = names and not self.entry.is_boolean
        return list(names) if text else [float(cell) for cell in range(self.entry.cells)]

    @property
    def ends(self) -> tuple[float, float]:
        """Smallest and largest scaled number."""
        return (self.low - self.centre) / self.half, (self.high - self.centre) / self.half


@dataclass(frozen=True)
class _Model:
    """Weights of all entries, including each category and bin; one score for each class.

    Without classes the one score is the prediction. For clusters, the nearest of the scaled
    `centres` has the largest score.
    """

    columns: tuple[_Column, ...]
    weights: Floats  # (n_scores, n_entries)
    bias: Floats
    classes: tuple[Label, ...]
    centres: Floats | None = None


def to_sklearn(model: Any) -> Any:
    """Return a released model as a fitted ``sklearn.pipeline.Pipeline``.

    Parameters
    ----------
    model : estimator or Release
        Fitted: k-means of any kind, linear or logistic regression, naive Bayes, or shapes of
        classes, optionally behind steps "bounds" and "standardise".

    Returns
    -------
    Pipeline
        An encoder for each column, then KMeans, LinearRegression, or LogisticRegression. Naive
        Bayes becomes a LogisticRegression on numbers and their squares. Input is in data units, in
        an array if the columns have no names, else in a DataFrame. Categories are text, for k-means
        their codes; dates are years with a fraction, such as 2025.5. No value may be missing.

    Raises
    ------
    PlanError
        If the model has another type.
    """
    import pandas as pd
    from sklearn.cluster import KMeans
    from sklearn.compose import ColumnTransformer
    from sklearn.linear_model import LinearRegression, LogisticRegression
    from sklearn.pipeline import make_pipeline

    found = _read(model)
    names = [column.entry.name for column in found.columns]
    nameless = names == [f"x{j}" for j in range(len(names))]
    places = [[j if nameless else name] for j, name in enumerate(names)]
    steps = zip(names, map(_encoder, found.columns), places, strict=True)
    ends = [c.cells[:2] if c.entry.categories else [c.low, c.high] for c in found.columns]
    # The encoder needs rows to fit, and no records exist here.
    table = pd.DataFrame(dict(zip(names, ends, strict=True)))  # public: two rows of ends
    encoder = ColumnTransformer([*steps]).fit(table.to_numpy() if nameless else table)
    for column in found.columns:
        if column.entry.bins:  # parts of all of [-1, 1], of which a row may reach less
            edges = np.array([-1.0, *column.inner, 1.0])
            encoder.named_transformers_[column.entry.name][-1].bin_edges_[0] = edges
    last: Any
    if found.centres is not None:
        # Fitted to distinct dummy points, to set the private attributes; then the centres replace
        # them.
        points = np.tile(np.arange(len(found.centres))[:, None], found.centres.shape[1])
        last = KMeans(len(points), init=points, n_init=1).fit(points)
        last.cluster_centers_ = np.ascontiguousarray(found.centres)
    elif found.classes:
        # With two classes, scikit-learn has one row of weights, for the second class.
        last, outputs = LogisticRegression(), slice(len(found.classes) == 2, None)
        last.coef_, last.intercept_ = found.weights[outputs], found.bias[outputs]
        last.classes_ = np.array(found.classes)
    else:
        last = LinearRegression()
        last.coef_, last.intercept_ = found.weights[0], found.bias[0]
    return make_pipeline(encoder, last)


def to_pickle(model: Any) -> bytes:
    """Return the pickle of :func:`to_sklearn`, which ``joblib.load`` reads."""
    return pickle.dumps(to_sklearn(model))


def to_onnx(model: Any) -> bytes:
    """Return a released model as an ONNX file of numbers and standard operators.

    Parameters
    ----------
    model : estimator or Release
        As for :func:`to_sklearn`; requires the extra ``onnx``.

    Returns
    -------
    bytes
        A graph with an input of shape (n, 1) for each column, by its name: float64, or the text of
        a category. An unknown category makes all scores NaN. Outputs are "prediction", of shape
        (n,), and for classifiers "probabilities", of shape (n, n_classes).

    Raises
    ------
    PlanError, DataError
        If the model has another type, or the extra is missing.
    """
    try:
        from onnx import TensorProto, helper, numpy_helper
    except ImportError:
        raise DataError("ONNX models need the extra: pip install 'cloister[onnx]'.") from None
    found, nodes, constants = _read(model), list[Any](), list[Any]()
    if taken := _OUTPUTS & {column.entry.name for column in found.columns}:
        raise PlanError(f"column {min(taken)!r} is the name of an output; export to scikit-learn.")

    def add(operator: str, *inputs: Any, output: str = "", **options: Any) -> str:
        """Add a step with inputs that are names, or constants: numbers or arrays."""
        names = list(inputs)
        for i, one in enumerate(inputs):
            if not isinstance(one, str):
                names[i] = f"/constant {len(constants)}"
                constants.append(numpy_helper.from_array(np.asarray(one), names[i]))
        output = output or f"/step {len(nodes)}"
        nodes.append(helper.make_node(operator, names, [output], **options))
        return output

    def entries(column: _Column) -> Iterator[str]:
        given, cells = column.entry.name, _array([column.cells])
        if column.entry.categories:
            # Divided by their sum, so that an unknown category gives 0 / 0, which is NaN.
            ones = add("Cast", add("Equal", given, cells), to=TensorProto.DOUBLE)
            yield add("Div", ones, add("ReduceSum", ones, np.array([1])))
            return
        cut = add("Min", add("Max", given, column.low), column.high)
        number = add("Div", add("Sub", cut, column.centre), column.half)
        if bins := column.entry.bins:
            part = add("Floor", add("Mul", add("Add", number, 1.0), bins / 2))
            if column.edges:  # the number of edges that are not above it
                above = add("GreaterOrEqual", number, column.inner[None])
                part = add("ReduceSum", add("Cast", above, to=TensorProto.DOUBLE), np.array([1]))
            there = add("Equal", add("Min", part, bins - 1.0), cells)
            yield add("Cast", there, to=TensorProto.DOUBLE)
            return
        yield number
        if column.entry.square:
            yield add("Mul", number, number)

    def described(name: str, like: Any, *shape: int) -> Any:
        kind = helper.np_dtype_to_tensor_dtype(_array(like).dtype)
        return helper.make_tensor_value_info(name, kind, ["n", *shape])

    every = add("Concat", *(one for column in found.columns for one in entries(column)), axis=1)
    scores = add("Add", add("MatMul", every, found.weights.T), found.bias)
    outputs = [described("prediction", found.classes or [0.0])]
    if found.classes:
        best = add("ArgMax", scores, axis=1, keepdims=0)
        add("Gather", _array(found.classes), best, output="prediction")
    else:
        add("Squeeze", scores, np.array([1]), output="prediction")
    if found.classes and found.centres is None:
        add("Softmax", scores, output="probabilities", axis=1)
        outputs.append(described("probabilities", [0.0], len(found.classes)))
    inputs = [described(c.entry.name, c.cells or [0.0], 1) for c in found.columns]
    graph = helper.make_graph(nodes, "cloister", inputs, outputs, constants)
    opset = helper.make_opsetid("", _OPSET)
    made = helper.make_model(graph, opset_imports=[opset], ir_version=_IR)
    return bytes(made.SerializeToString())


def _read(model: Any) -> _Model:
    """Return the weights of a released model."""
    result = model if isinstance(model, Release) else getattr(model, "result_", None)
    if not isinstance(result, Release):
        raise PlanError(f"model must be one that cloister released, got a {type(model).__name__}.")
    plan, task, results = result.plan, result.plan.task, result.results
    names, grid, before = plan.columns, plan.grid, []
    if isinstance(task, Pipeline):
        before = [(step, task.results_of(i, results)) for i, step in enumerate(task.steps[:-1])]
        results = task.results_of(len(before), results)
        names, grid, task = task.last_step_columns, task.last_step_grid, task.steps[-1]
    box = np.array([plan.grid.low, plan.grid.high, plan.grid.centre, plan.grid.half_range])
    for step, released in before:
        _narrow(box, step, released)
    at = dict(zip(plan.columns, box.T.tolist(), strict=True))
    if "centres" in results:
        centres = grid.normalise(results["centres"])
        entries = tuple(map(Entry, names, grid.low, grid.high))
        weights, bias = 2 * centres, -(centres**2).sum(axis=1)
        columns = tuple(_Column(entry, *at[entry.name]) for entry in entries)
        return _Model(columns, weights, bias, tuple(range(len(centres))), centres)
    if not isinstance(task, Linear | Logistic | NaiveBayes | ShapesClassifier):
        raise _refused(task)
    # A release has its classes as text; labels have the types of the model's predictions.
    labels = None if isinstance(task, Linear) else as_labels(task.classes)
    labels = getattr(model, "classes_", labels)
    if isinstance(task, ShapesClassifier):
        return _read_shapes(task, results, names, grid, at, labels)
    scorer = scorer_of_task(task, results, names, grid, labels)
    entries, classes = scorer.layout.columns, scorer.layout.classes
    starts = [0, *accumulate(entry.width for entry in entries)]
    # The scorer omits the first category or bin; its weight here is zero.
    cells = [start for start, entry in zip(starts, entries, strict=False) if entry.cells]
    weights, bias = np.insert(scorer.weights, cells, 0, axis=1), scorer.bias
    # A scorer has scores against the first class; the export has the first class, too.
    if classes:
        weights, bias = np.insert(weights, 0, 0, axis=0), np.insert(bias, 0, 0)
    columns = tuple(_Column(entry, *at[entry.name]) for entry in entries)
    return _Model(columns, weights, bias, classes)


def _read_shapes(
    task: ShapesClassifier,
    results: Results,
    names: Sequence[str],
    grid: Grid,
    at: Mapping[str, Sequence[Any]],
    labels: Any,
) -> _Model:
    """Return the effects of bins and categories as weights."""
    layout, columns, weights = task.layout, [], []
    edges = iter(results["edges"])
    for j, start in zip(layout.used, layout.starts, strict=False):
        inner: tuple[float, ...] = ()
        if not (categories := task.categories[j]):
            scaled = (next(edges) - grid.centre[j]) / grid.half_range[j]
            inner = tuple(scaled[scaled < 1].tolist())
        size = len(categories) or len(inner) + 1
        entry = Entry(
            name=names[j],
            low=grid.low[j],
            high=grid.high[j],
            categories=categories,
            bins=0 if categories else size,
        )
        columns.append(replace(_Column(entry, *at[names[j]]), edges=inner))
        weights.append(results["effects"][start : start + size])
    of_scores, bias = np.concatenate(weights).T, results["intercept"]
    if len(bias) == 1:  # a score of the second class; the first has 0
        of_scores, bias = np.insert(of_scores, 0, 0, axis=0), np.insert(bias, 0, 0)
    return _Model(tuple(columns), of_scores, bias, tuple(np.asarray(labels).tolist()))


def _narrow(box: Floats, step: Task, results: Results) -> None:
    """Update low, high, centre and half of the columns (rows of `box`) for a scaling step."""
    if not isinstance(step, Scaled):
        raise _refused(step)
    low, high, centre, half = box[:, list(step.used)]
    ends = step.scaled(results, np.array([step.used_box.low, step.used_box.high]))
    slope = (ends[1] - ends[0]) / 2
    centre = centre - half * (ends[0] + ends[1]) / 2 / slope
    half = half / slope
    low, high = np.clip([low, high], centre - half, centre + half)
    box[:, list(step.used)] = low, high, centre, half


def _refused(task: Task) -> PlanError:
    return PlanError(
        f"task {task.name!r} of the model has no form in scikit-learn or ONNX, which only k-means, "
        "linear and logistic regression, naive Bayes and shapes of classes have, after steps "
        "'bounds' and 'standardise'; score with cloister predict."
    )


def _encoder(column: _Column) -> Any:
    """Return an unfitted encoder of a column in scikit-learn."""
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import (
        FunctionTransformer,
        KBinsDiscretizer,
        MinMaxScaler,
        OneHotEncoder,
        PolynomialFeatures,
    )

    if column.entry.categories:
        return OneHotEncoder(categories=[column.cells], sparse_output=False)
    # pandas refuses to make numbers of days; scikit-learn would take their nanoseconds for years.
    steps = [FunctionTransformer(methodcaller("astype", float))]
    steps.append(MinMaxScaler(column.ends, clip=True))
    if bins := column.entry.bins:
        steps.append(KBinsDiscretizer(bins, encode="onehot-dense", strategy="uniform"))
    elif column.entry.square:
        steps.append(PolynomialFeatures(2, include_bias=False))
    return make_pipeline(*steps)


def _array(values: Any) -> NDArray[Any]:
    """Return an array with text as objects, the representation of ONNX."""
    array = np.asarray(values)
    return array.astype(object) if array.dtype.kind == "U" else array
