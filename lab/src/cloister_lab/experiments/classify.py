"""Classifiers on UCI Adult: accuracy of ours, of scikit-learn without noise, and of diffprivlib.

A method is a function from a problem and an epsilon to the probabilities of the classes of the test
records. To add one, write the function and its row in `METHODS`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from cloister.data import read_source
from cloister.jobs import run_job
from cloister.randomness import public_generator
from cloister.schema import Schema
from cloister.task import Floats, Integers, Records, Task
from cloister.tasks.columns import Encoding, codes
from cloister.tasks.supervised.logistic import Logistic
from cloister.tasks.supervised.naive_bayes import NaiveBayes
from cloister_lab.experiments import diffprivlib_models
from cloister_lab.experiments.datasets import SUFFIXES
from cloister_lab.experiments.environments import python_with, run_script
from cloister_lab.experiments.figures import Curves, Point, draw_panels
from cloister_lab.experiments.records import (
    Key,
    Means,
    TidyRow,
    Value,
    means_of,
    paired,
    write_table,
)
from cloister_lab.experiments.run import Experiment, Settings, Unit, markdown, prose, write_page

DIFFPRIVLIB_PACKAGES = (
    "diffprivlib==0.6.6",
    "scikit-learn==1.6.1",
    "scipy==1.15.3",
    "numpy==2.2.6",
)
"""What the environment of diffprivlib is made of."""

SCHEMAS = Path(__file__).parent / "schemas"
"""Public schemas of tables in a data folder."""

EPSILONS = (0.1, 0.5, 1.0, 4.0)
Columns = Literal["all", "numbers"]
_MADE_UP, _MADE_UP_SIZE = "made-up", 3000
_TABLE, _SCHEMA, _TARGET = "adult_full", "adult.toml", "income"
_SILOS = 3
_TEST_SHARE = 0.2
_MOST_BINS = 128  # of the baseline on bins: as many as ours has at most


@dataclass(frozen=True, eq=False)
class Problem:
    """Training records in silos, and test records.

    Parameters
    ----------
    silos : tuple of ndarray of shape (n, n_features), int32, grid steps
    test : ndarray of shape (n, n_features), int32, grid steps
    nominal_n : int
        The number of training records, rounded to one digit.
    repeat : int
        Seed of the split.
    """

    schema: Schema
    target: str
    silos: tuple[Records, ...]
    test: Records
    nominal_n: int
    repeat: int

    @property
    def train(self) -> Records:
        """The records of all silos."""
        return np.concatenate(self.silos)

    @property
    def at(self) -> int:
        """Where the target is."""
        return self.schema.names.index(self.target)

    def labels(self, records: Records) -> Integers:
        """Return the number of each record's class."""
        return codes(
            records[:, self.at], self.schema.public[self.at].levels, self.schema.grid().frac_bits
        )

    def values(self, records: Records) -> Floats:
        """Return the other columns in data units, categories as their numbers."""
        grid = self.schema.grid()
        found: Floats = np.delete(grid.decode(records / grid.one), self.at, axis=1)
        return found


Answer = Floats | str
"""Probabilities of shape (n_test, n_classes), or why there are none."""


@dataclass(frozen=True)
class Method:
    """A way to classify.

    Parameters
    ----------
    family : str
        Methods of one family and the same columns share a baseline: the best one without noise.
    columns : {"all", "numbers"}
        All columns of the schema, or only numbers.
    answer : function of Problem and epsilon
        Returns an `Answer`.
    private : bool
        False for a baseline, which is run once for each split.
    """

    family: str
    columns: Columns
    answer: Callable[[Problem, float], Answer]
    private: bool = True


# --- Our own --------------------------------------------------------------------------------------


def released(problem: Problem, epsilon: float, *, task: type[Task], **options: Any) -> Floats:
    """Run a classifier's job over the silos, with exact noise, and apply it to the test records."""
    result = run_job(
        task,
        problem.schema,
        {f"silo-{i}": [records] for i, records in enumerate(problem.silos)},
        epsilon=epsilon,
        nominal_n=problem.nominal_n,
        target=problem.target,
        **options,
    )
    model = result.plan.task
    probabilities: Floats = model.probabilities(result.results, problem.test)  # type: ignore[attr-defined]  # a Classifier
    return probabilities


# --- Without noise --------------------------------------------------------------------------------


def mixed_naive_bayes(problem: Problem, epsilon: float) -> Floats:
    """Return scikit-learn's naive Bayes: categorical for categories, Gaussian for numbers."""
    from sklearn.naive_bayes import CategoricalNB, GaussianNB

    levels = np.delete([c.levels for c in problem.schema.public], problem.at)
    X, X_test = problem.values(problem.train), problem.values(problem.test)
    y = problem.labels(problem.train)
    of_numbers = levels == 0
    normal = GaussianNB().fit(X[:, of_numbers], y)
    scores = normal.predict_joint_log_proba(X_test[:, of_numbers])
    if not of_numbers.all():
        table = CategoricalNB(min_categories=levels[~of_numbers])
        table.fit(X[:, ~of_numbers].round(), y)
        scores = scores + table.predict_joint_log_proba(X_test[:, ~of_numbers].round())
        scores = scores - table.class_log_prior_
    return _normalised(scores)


def binned_naive_bayes(problem: Problem, epsilon: float) -> Floats:
    """Return scikit-learn's categorical naive Bayes, numbers in bins of equal width."""
    from sklearn.naive_bayes import CategoricalNB

    public = [c for j, c in enumerate(problem.schema.public) if j != problem.at]
    sizes = [c.levels or _MOST_BINS for c in public]

    def table(records: Records) -> Floats:
        columns = problem.values(records).T
        parts = [
            values.round()
            if c.levels
            else np.clip((values - c.low) / (c.high - c.low) * _MOST_BINS, 0, _MOST_BINS - 1)
            for c, values in zip(public, columns, strict=True)
        ]
        cells: Floats = np.floor(np.column_stack(parts))
        return cells

    model = CategoricalNB(min_categories=sizes)
    model.fit(table(problem.train), problem.labels(problem.train))
    return _normalised(model.predict_joint_log_proba(table(problem.test)))


def design(problem: Problem, records: Records) -> Floats:
    """Return numbers in ``[-1, 1]`` by their bounds, categories one-hot, no intercept."""
    grid = problem.schema.grid()
    levels = tuple(c.levels for c in problem.schema.public)
    rows = Encoding(levels, grid.frac_bits, (problem.at,)).rows(records)
    found: Floats = rows[:, :-1] / grid.one
    return found


def clear_logistic(problem: Problem, epsilon: float, *, standardised: bool) -> Floats:
    """Return scikit-learn's logistic regression on the design, as it is or standardised."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = LogisticRegression(max_iter=2000)
    if standardised:
        model = make_pipeline(StandardScaler(), model)
    model.fit(design(problem, problem.train), problem.labels(problem.train))
    found: Floats = model.predict_proba(design(problem, problem.test))
    return found


def _normalised(scores: Floats) -> Floats:
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    probabilities: Floats = odds / odds.sum(axis=1, keepdims=True)
    return probabilities


# --- diffprivlib ----------------------------------------------------------------------------------


def in_diffprivlib(
    model: str, X: Floats, y: Integers, X_test: Floats, epsilon: float, **needs: Floats | float
) -> Answer:
    """Fit one of diffprivlib's models in its own environment and apply it to test records.

    Parameters
    ----------
    model : {"GaussianNB", "LogisticRegression"}
    needs : arrays and numbers
        ``low`` and ``high`` of the first, ``data_norm`` of the second.
    """
    python = python_with("diffprivlib", DIFFPRIVLIB_PACKAGES, "diffprivlib.models", fetch=True)
    arrays = {"X": X, "y": y, "X_test": X_test, "epsilon": epsilon, **needs}
    found = run_script(python, diffprivlib_models.__file__, [model, "FILE"], arrays)
    return found if isinstance(found, str) else np.array(found["probabilities"])


def diffprivlib_gaussian(problem: Problem, epsilon: float) -> Answer:
    """Return diffprivlib's Gaussian naive Bayes under the schema's bounds."""
    public = [c for j, c in enumerate(problem.schema.public) if j != problem.at]
    return in_diffprivlib(
        "GaussianNB",
        problem.values(problem.train),
        problem.labels(problem.train),
        problem.values(problem.test),
        epsilon,
        low=np.array([c.low for c in public]),
        high=np.array([c.high for c in public]),
    )


def diffprivlib_logistic(problem: Problem, epsilon: float) -> Answer:
    """Return diffprivlib's logistic regression on the design, told the length of any row."""
    return in_diffprivlib(
        "LogisticRegression",
        design(problem, problem.train),
        problem.labels(problem.train),
        design(problem, problem.test),
        epsilon,
        data_norm=math.sqrt(len(problem.schema.columns) - 1),
    )


# --- Work -----------------------------------------------------------------------------------------

_BAYES = "naive Bayes"
_OURS = partial(released, task=NaiveBayes)

_LOGISTIC = "logistic regression"
_OURS_LOGISTIC = partial(released, task=Logistic)
_CLEAR = partial(clear_logistic, standardised=False)
_CLEAR_STANDARDISED = partial(clear_logistic, standardised=True)

METHODS: dict[str, Method] = {
    "naive-bayes": Method(_BAYES, "all", _OURS),
    "naive-bayes, normal law": Method(_BAYES, "all", partial(_OURS, numbers="gaussian")),
    "scikit-learn, categories and normal law": Method(_BAYES, "all", mixed_naive_bayes, False),
    "scikit-learn, bins": Method(_BAYES, "all", binned_naive_bayes, False),
    "naive-bayes on numbers": Method(_BAYES, "numbers", _OURS),
    "naive-bayes on numbers, normal law": Method(
        _BAYES, "numbers", partial(_OURS, numbers="gaussian")
    ),
    "diffprivlib GaussianNB": Method(_BAYES, "numbers", diffprivlib_gaussian),
    "scikit-learn GaussianNB": Method(_BAYES, "numbers", mixed_naive_bayes, False),
    "scikit-learn, bins of numbers": Method(_BAYES, "numbers", binned_naive_bayes, False),
    "logistic": Method(_LOGISTIC, "all", _OURS_LOGISTIC),
    "diffprivlib LogisticRegression": Method(_LOGISTIC, "all", diffprivlib_logistic),
    "scikit-learn LogisticRegression": Method(_LOGISTIC, "all", _CLEAR, False),
    "scikit-learn LogisticRegression, standardised": Method(
        _LOGISTIC, "all", _CLEAR_STANDARDISED, False
    ),
    "logistic on numbers": Method(_LOGISTIC, "numbers", _OURS_LOGISTIC),
    "diffprivlib LogisticRegression on numbers": Method(_LOGISTIC, "numbers", diffprivlib_logistic),
    "scikit-learn LogisticRegression on numbers": Method(_LOGISTIC, "numbers", _CLEAR, False),
    "scikit-learn LogisticRegression on numbers, standardised": Method(
        _LOGISTIC, "numbers", _CLEAR_STANDARDISED, False
    ),
}
"""All that are compared, by name; rows, tables and figures follow from it."""

TARGETS: Mapping[tuple[str, float], float] = {
    (_BAYES, 1.0): 0.01,
    (_BAYES, 0.1): 0.03,
    (_LOGISTIC, 1.0): 0.02,
    (_LOGISTIC, 0.1): 0.05,
}
"""Accuracy that a family may lose on all columns at an epsilon."""

RIVALS: tuple[tuple[str, str], ...] = (
    ("naive-bayes on numbers", "diffprivlib GaussianNB"),
    ("naive-bayes on numbers, normal law", "diffprivlib GaussianNB"),
    ("logistic", "diffprivlib LogisticRegression"),
    ("logistic on numbers", "diffprivlib LogisticRegression on numbers"),
)
"""Ours and the method of others it is set against; columns, bounds and epsilon are the same."""


def _units(settings: Settings) -> list[Unit]:
    file = settings.file(_TABLE, SUFFIXES)
    dataset = _TABLE if file else _MADE_UP
    if (file is None and settings.full) or not settings.wants(dataset):
        return []
    epsilons = EPSILONS if settings.full else (1.0,)
    names = [name for name in METHODS if settings.full or not name.startswith("diffprivlib")]
    return [
        Unit(
            f"{dataset} {name} epsilons={','.join(map(str, epsilons))} r={repeat}",
            partial(measure, name, file, repeat, epsilons),
        )
        for repeat in range(settings.runs(20, 2))
        for name in names
    ]


def measure(name: str, file: Path | None, repeat: int, epsilons: Sequence[float]) -> list[TidyRow]:
    """Run a method on one split of the table, or of made-up records; a row for each epsilon."""
    method = METHODS[name]
    problem = split(file, method.columns, repeat)
    truth = problem.labels(problem.test)
    rows: list[TidyRow] = []
    for epsilon in epsilons if method.private else (math.inf,):
        begin = time.perf_counter()
        answer = method.answer(problem, epsilon)
        seconds = time.perf_counter() - begin
        row: dict[str, Value] = {
            "dataset": _TABLE if file else _MADE_UP,
            "family": method.family,
            "columns": method.columns,
            "method": name,
            "epsilon": epsilon,
            "repeat": repeat,
            "accuracy": None,
            "balanced_accuracy": None,
            "log_loss": None,
            "seconds": seconds,
            "skipped": None,
        }
        told = {"skipped": answer} if isinstance(answer, str) else _scores(answer, truth)
        rows.append({**row, **told})
    return rows


def _scores(probabilities: Floats, truth: Integers) -> dict[str, Value]:
    right = probabilities.argmax(axis=1) == truth
    of_truth = np.maximum(probabilities[np.arange(len(truth)), truth], 1e-9)
    return {
        "accuracy": float(right.mean()),
        "balanced_accuracy": float(np.mean([right[truth == k].mean() for k in np.unique(truth)])),
        "log_loss": float(-np.log(of_truth).mean()),
    }


def split(file: Path | None, columns: Columns, repeat: int) -> Problem:
    """Return silos of equal size and test records, drawn by a public seed."""
    return dealt("classify", *_read(file, columns), _TARGET, repeat, _TEST_SHARE)


def dealt(
    name: str, schema: Schema, records: Records, target: str, repeat: int, test_share: float
) -> Problem:
    """Deal records to three silos, but for a share of them that is for testing."""
    order = public_generator(name, repeat).permutation(len(records))
    n_test = round(test_share * len(records))
    train = records[order[n_test:]]
    return Problem(
        schema=schema,
        target=target,
        silos=tuple(train[i::_SILOS] for i in range(_SILOS)),
        test=records[order[:n_test]],
        nominal_n=int(float(f"{len(train):.0e}")),
        repeat=repeat,
    )


@lru_cache(maxsize=2)
def _read(file: Path | None, columns: Columns) -> tuple[Schema, Records]:
    schema = Schema.load(SCHEMAS / _SCHEMA)
    if columns == "numbers":
        kept = tuple(c for c in schema.columns if not c.categories or c.name == _TARGET)
        schema = schema.model_copy(update={"columns": kept})
    if file is None:
        return schema, _made_up(schema)
    return schema, np.concatenate(list(read_source(file, schema)))


def _made_up(schema: Schema) -> Records:
    """Return records of nobody, for a look without the table: every column leans to the class."""
    rng = public_generator(_MADE_UP, "classify")
    rich = rng.random(_MADE_UP_SIZE) < 0.25
    cells = [
        rich
        if column.name == _TARGET
        else np.floor(rng.beta(2 + rich, 3) * len(column.categories))
        if column.categories
        else column.min + (column.max - column.min) * rng.beta(2 + 2 * rich, 5)
        for column in schema.columns
    ]
    return schema.grid().encode(np.column_stack(cells))


# --- What is shown --------------------------------------------------------------------------------

_BY = ("family", "columns", "method", "epsilon")


def _figures(rows: Sequence[TidyRow], out: Path) -> list[Path]:
    accuracy = means_of(rows, _BY, "accuracy")
    table: list[TidyRow] = [
        {
            **dict(zip(_BY, key, strict=True)),
            "runs": mean.runs,
            "accuracy": mean.mean,
            "accuracy_half_width": mean.half_or_none,
            "below_baseline": _loss(accuracy, key),
        }
        for key, mean in accuracy.items()
    ]
    page = write_page(out / "classify.md", _page(rows))
    return [page, write_table(out / "classify.csv", table), _figure(accuracy, out / "classify.png")]


def baseline(accuracy: Means, family: Value, columns: Value) -> tuple[str, float] | None:
    """Return the best method without noise of a family on some columns, and its mean."""
    found = [
        (mean.mean, str(key[2]))
        for key, mean in accuracy.items()
        if key[:2] == (family, columns) and key[3] == math.inf
    ]
    return (max(found)[1], max(found)[0]) if found else None


def _loss(accuracy: Means, key: Key) -> float | None:
    """Return how far a mean is below its baseline; negative above it."""
    best = baseline(accuracy, *key[:2])
    return None if best is None else best[1] - accuracy[key].mean


def _figure(accuracy: Means, path: Path) -> Path:
    panels: dict[str, dict[str, list[Point]]] = {}
    for (family, columns, method, epsilon), mean in accuracy.items():
        panel = panels.setdefault(f"{family}, {columns}", {})
        best = baseline(accuracy, family, columns)
        if epsilon != math.inf:
            name = str(method).replace(" on numbers", "")  # the panel says it
            panel.setdefault(name, []).append((float(epsilon or 0), mean.mean, mean.half))
        elif best and best[0] == method:
            panel["baseline"] = [(math.inf, mean.mean, mean.half)]
    shown: dict[str, Curves] = dict(panels)
    return draw_panels(
        path,
        shown,
        title="Income in UCI Adult",
        x_label="ε",
        y_label="accuracy, mean and 95 % interval",
        x_log=True,
        columns=2,
        own_legends=True,
        note="Three silos; a fifth of the records is held back for the test.",
    )


def _page(rows: Sequence[TidyRow]) -> list[str]:
    accuracy, balanced, loss, seconds = (
        means_of(rows, _BY, name)
        for name in ("accuracy", "balanced_accuracy", "log_loss", "seconds")
    )
    lines = prose("classify")
    for family, columns in dict.fromkeys((key[0], key[1]) for key in accuracy):
        of_panel = [key for key in accuracy if key[:2] == (family, columns)]
        best = baseline(accuracy, family, columns)
        what = "all columns" if columns == "all" else "columns of numbers"
        lines += ["", f"## {_title(str(family))}, {what}", ""]
        if best:
            lines += [f"Baseline: {best[0]}, {best[1]:.4f}.", ""]
        headings = ("Method", "ε", "runs", "accuracy", "below baseline", "allowed")
        lines += markdown(
            (*headings, "balanced accuracy", "log-loss", "seconds"),
            (_line(key, accuracy, balanced, loss, seconds) for key in of_panel),
        )
    lines += _rivals(rows)
    skipped = sorted({f"{row['method']}: {row['skipped']}" for row in rows if row["skipped"]})
    if skipped:
        lines += ["", "Not measured: " + "; ".join(skipped) + "."]
    return lines


def _title(family: str) -> str:
    return family[0].upper() + family[1:]


def _line(key: Key, *means: Means) -> tuple[object, ...]:
    accuracy, balanced, loss, seconds = (of[key] for of in means)
    family, columns, method, epsilon = key
    below = _loss(means[0], key)
    private = epsilon != math.inf
    allowed = TARGETS.get((str(family), float(epsilon or 0))) if columns == "all" else None
    ours = METHODS.get(str(method))
    shown = allowed is not None and ours is not None and private
    return (
        *(method, f"{epsilon:g}" if private else "no noise", accuracy.runs, f"{accuracy:.4f}"),
        *(
            "-" if below is None or not private else f"{below:.4f}",
            f"{allowed:g}" if shown else "-",
        ),
        *(f"{balanced.mean:.4f}", f"{loss.mean:.3f}", f"{seconds.mean:.2g}"),
    )


def _rivals(rows: Sequence[TidyRow]) -> list[str]:
    """Return a table of ours less theirs over the same splits."""
    lines = [
        (ours, theirs, f"{epsilon:g}", mean.runs, f"{mean.mean:+.4f}", f"{mean.error:.4f}")
        for ours, theirs in RIVALS
        for (epsilon,), mean in paired(rows, ("epsilon",), "accuracy", ours, theirs).items()
    ]
    if not lines:
        return []
    head = ["", "## Beside diffprivlib", ""]
    head += ["Same records, columns, bounds and ε; mean difference of accuracy over splits.", ""]
    return [
        *head,
        *markdown(("Ours", "Theirs", "ε", "runs", "ours - theirs", "standard error"), lines),
    ]


CLASSIFY = Experiment(
    "classify",
    "accuracy of private classifiers on Adult beside scikit-learn and diffprivlib",
    _units,
    _figures,
    seconds_small=10,
    seconds_full=10 * 60,
)
