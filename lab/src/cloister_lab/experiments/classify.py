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
from typing import Any, Literal, get_args

import numpy as np

from cloister.app.job import run_job
from cloister.core.randomness import public_generator
from cloister.data import read_source
from cloister.data.schema import Schema
from cloister.protocol.task import Floats, Integers, PublicColumn, Records, Task
from cloister.tasks.columns import Encoding, codes
from cloister.tasks.supervised.logistic import Logistic
from cloister.tasks.supervised.naive_bayes import NaiveBayes
from cloister_lab.experiments import diffprivlib_models
from cloister_lab.experiments import records as tidy
from cloister_lab.experiments.datasets import SUFFIXES
from cloister_lab.experiments.environments import python_with, run_script
from cloister_lab.experiments.figures import draw_panels, panels_of
from cloister_lab.experiments.records import Cell, Key, TidyRow, Value
from cloister_lab.experiments.run import Settings, Unit, units_of

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

    @property
    def others(self) -> list[PublicColumn]:
        """The columns that a class is predicted from."""
        return [c for j, c in enumerate(self.schema.public) if j != self.at]

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

Table = Callable[[Problem, Records], Floats]
"""From records of a problem to what a model sees of them."""


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

    levels = np.array([c.levels for c in problem.others])
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

    sizes = [c.levels or _MOST_BINS for c in problem.others]

    def table(records: Records) -> Floats:
        columns = problem.values(records).T
        parts = [
            values.round()
            if c.levels
            else np.clip((values - c.low) / (c.high - c.low) * _MOST_BINS, 0, _MOST_BINS - 1)
            for c, values in zip(problem.others, columns, strict=True)
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


def clear_logistic(problem: Problem, epsilon: float, *, standardised: bool = False) -> Floats:
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
    problem: Problem, epsilon: float, *, model: str, table: Table, **needs: Floats | float
) -> Answer:
    """Fit one of diffprivlib's models in its own environment and apply it to test records.

    Parameters
    ----------
    table : function of a problem and records
        What the model sees of them.
    needs : arrays and numbers
        ``low`` and ``high`` of the first, ``data_norm`` of the second.
    """
    python = python_with("diffprivlib", DIFFPRIVLIB_PACKAGES, "diffprivlib.models", fetch=True)
    arrays = {
        "X": table(problem, problem.train),
        "y": problem.labels(problem.train),
        "X_test": table(problem, problem.test),
        "epsilon": epsilon,
        **needs,
    }
    found = run_script(python, diffprivlib_models.__file__, [model, "FILE"], arrays)
    return found if isinstance(found, str) else np.array(found["probabilities"])


def diffprivlib_gaussian(problem: Problem, epsilon: float) -> Answer:
    """Return diffprivlib's Gaussian naive Bayes under the schema's bounds."""
    low, high = (np.array([getattr(c, end) for c in problem.others]) for end in ("low", "high"))
    return in_diffprivlib(
        problem, epsilon, model="GaussianNB", table=Problem.values, low=low, high=high
    )


def diffprivlib_logistic(problem: Problem, epsilon: float) -> Answer:
    """Return diffprivlib's logistic regression on the design, given the largest norm of a row."""
    norm = math.sqrt(len(problem.others))
    return in_diffprivlib(
        problem, epsilon, model="LogisticRegression", table=design, data_norm=norm
    )


# --- Work -----------------------------------------------------------------------------------------

_BAYES, _LOGISTIC = "naive Bayes", "logistic regression"
_NORMAL = partial(released, task=NaiveBayes, numbers="gaussian")
_STANDARDISED = partial(clear_logistic, standardised=True)
_SCIKIT, _THEIRS = "scikit-learn LogisticRegression", "diffprivlib LogisticRegression"
_ON_ALL_AND_ON_NUMBERS: Mapping[
    str, tuple[tuple[Callable[[Problem, float], Answer], bool, str, str], ...]
] = {
    _BAYES: (
        (partial(released, task=NaiveBayes), True, "naive-bayes", "naive-bayes on numbers"),
        (_NORMAL, True, "naive-bayes, normal law", "naive-bayes on numbers, normal law"),
        (diffprivlib_gaussian, True, "", "diffprivlib GaussianNB"),
        (
            *(mixed_naive_bayes, False),
            *("scikit-learn, categories and normal law", "scikit-learn GaussianNB"),
        ),
        (binned_naive_bayes, False, "scikit-learn, bins", "scikit-learn, bins of numbers"),
    ),
    _LOGISTIC: (
        (partial(released, task=Logistic), True, "logistic", "logistic on numbers"),
        (diffprivlib_logistic, True, _THEIRS, f"{_THEIRS} on numbers"),
        (clear_logistic, False, _SCIKIT, f"{_SCIKIT} on numbers"),
        (_STANDARDISED, False, f"{_SCIKIT}, standardised", f"{_SCIKIT} on numbers, standardised"),
    ),
}
"""By family: a way, whether it is private, and its names on all columns and on numbers."""

METHODS: dict[str, Method] = {
    names[place]: Method(family, columns, answer, private)
    for family, ways in _ON_ALL_AND_ON_NUMBERS.items()
    for place, columns in enumerate(get_args(Columns))
    for answer, private, *names in ways
    if names[place]
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


def units(settings: Settings) -> list[Unit]:
    """Return the units."""
    file = settings.file(_TABLE, SUFFIXES)
    if (file is None and settings.full) or not settings.wants(_TABLE if file else _MADE_UP):
        return []
    return units_of(
        measure,
        file=[file],
        repeat=range(settings.runs(20, 2)),
        name=[name for name in METHODS if settings.full or not name.startswith("diffprivlib")],
        epsilons=[EPSILONS if settings.full else (1.0,)],
    )


def measure(name: str, file: Path | None, repeat: int, epsilons: Sequence[float]) -> list[TidyRow]:
    """Run a method on one split of the table, or of made-up records; a row for each epsilon."""
    method = METHODS[name]
    problem = split(file, method.columns, repeat)
    truth = problem.labels(problem.test)
    rows: list[TidyRow] = []
    for epsilon in epsilons if method.private else (math.inf,):
        begin = time.perf_counter()
        answer = method.answer(problem, epsilon)
        row: dict[str, Value] = {
            "dataset": _TABLE if file else _MADE_UP,
            "family": method.family,
            "columns": method.columns,
            "method": name,
            "epsilon": epsilon,
            "repeat": repeat,
            **dict.fromkeys(_SCORES),
            "seconds": time.perf_counter() - begin,
            "skipped": answer if isinstance(answer, str) else None,
        }
        rows.append(row if isinstance(answer, str) else row | _scores(answer, truth))
    return rows


_SCORES = ("accuracy", "balanced_accuracy", "log_loss")


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


def figures(rows: Sequence[TidyRow], out: Path) -> list[Path]:
    """Write what the rows show."""
    by = ("family", "columns", "method", "epsilon")
    cells = tidy.cells_of(rows, by, *_SCORES, "seconds")
    panels: dict[Key, list[Cell]] = {}
    for cell in cells:
        panels.setdefault((cell["family"], cell["columns"]), []).append(cell)
    for of_panel in panels.values():
        _set_beside_baseline(of_panel)
    table = [
        {
            **{name: cell[name] for name in (*by, "runs", "accuracy")},
            "accuracy_half_width": cell["accuracy"].half_or_none,
            "below_baseline": cell["below_any"],
        }
        for cell in cells
    ]
    lines = tidy.prose("classify")
    for (family, columns), of_panel in panels.items():
        best = of_panel[0]["baseline"]
        mean = f"Baseline: {best['method']}, {best['accuracy'].mean:.4f}.\n\n" if best else ""
        lines += tidy.prose(
            *("classify-panel", of_panel),
            title=str(family)[0].upper() + str(family)[1:],
            what="all columns" if columns == "all" else "columns of numbers",
            baseline=mean,
        )
    page = tidy.write_page(out / "classify.md", [*lines, *_rivals(rows), *tidy.not_measured(rows)])
    return [
        page,
        tidy.write_table(out / "classify.csv", table),
        _figure(cells, out / "classify.png"),
    ]


def _set_beside_baseline(cells: Sequence[Cell]) -> None:
    """Add to the cells of a family on some columns the best one without noise, and what is lost."""
    clear = [cell for cell in cells if cell["epsilon"] == math.inf]
    best = max(clear, key=lambda cell: (cell["accuracy"].mean, cell["method"]), default=None)
    for cell in cells:
        private = cell["epsilon"] != math.inf
        below = None if best is None else best["accuracy"].mean - cell["accuracy"].mean
        allowed = TARGETS.get((cell["family"], cell["epsilon"]))
        cell["baseline"], cell["below_any"] = best, below
        cell["below"] = below if private else None
        cell["allowed"] = (
            allowed if cell["columns"] == "all" and cell["method"] in METHODS else None
        )
        cell["shown"] = f"{cell['epsilon']:g}" if private else "no noise"


def _figure(cells: Sequence[Cell], path: Path) -> Path:
    shown = [
        # the panel says which columns
        {**cell, "curve": cell["method"].replace(" on numbers", "") if private else "baseline"}
        for cell in cells
        if (private := cell["epsilon"] != math.inf) or cell is cell["baseline"]
    ]
    return draw_panels(
        path,
        panels_of(shown, "{family}, {columns}", "{curve}", "epsilon", "accuracy"),
        title="Income in UCI Adult",
        x_label="ε",
        y_label="accuracy, mean and 95 % interval",
        x_log=True,
        columns=2,
        own_legends=True,
        note="Three silos; a fifth of the records is held back for the test.",
    )


def _rivals(rows: Sequence[TidyRow]) -> list[str]:
    """Return a table of ours less theirs over the same splits."""
    lines = [
        {"ours": ours, "theirs": theirs, "epsilon": epsilon, "apart": mean}
        for ours, theirs in RIVALS
        for (epsilon,), mean in tidy.paired(rows, ("epsilon",), "accuracy", ours, theirs).items()
    ]
    return tidy.prose("classify-rivals", lines) if lines else []
