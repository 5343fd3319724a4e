"""Credit scoring: joint private models and ensembles of silos' own models, on public tables.

A method is a function from a problem and an epsilon to the probabilities of the classes of the test
records, as in :mod:`cloister_lab.experiments.classify`; a row of `METHODS` adds one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from cloister.app.job import run_job
from cloister.data import read_source
from cloister.data.schema import Column, Schema
from cloister.estimators.ensemble import Combine, combined_probabilities
from cloister.estimators.forest import best_class
from cloister.privacy.budget import default_delta
from cloister.protocol.task import Floats, Integers, Records, Task
from cloister.tasks.supervised.forest import RandomForest
from cloister.tasks.supervised.logistic import Logistic
from cloister.tasks.supervised.naive_bayes import NaiveBayes
from cloister_lab.experiments import records as tidy
from cloister_lab.experiments.classify import SCHEMAS, Answer, Method, Problem, dealt, released
from cloister_lab.experiments.datasets import BUNDLED, SUFFIXES
from cloister_lab.experiments.figures import draw_panels, panels_of
from cloister_lab.experiments.records import Cell, Key, TidyRow, Value
from cloister_lab.experiments.run import Settings, Unit, units_of

EPSILONS = (0.1, 0.5, 1.0, 4.0)
_TEST_SHARE = 0.25


@dataclass(frozen=True)
class Loans:
    """A public table of a data folder with its schema, a file beside this package.

    `costs[true][predicted]` are given where the codebook gives them; `repeats` are splits of the
    full experiment.
    """

    name: str
    schema: str
    target: str
    costs: tuple[tuple[float, ...], ...] | None
    repeats: int


TABLES: tuple[Loans, ...] = (
    Loans("german_credit", "german_credit.toml", "credit", ((0.0, 1.0), (5.0, 0.0)), 50),
    Loans("adult_full", "adult.toml", "income", None, 5),
)
"""What is asked; the second table is not about credit, but large."""

STAND_IN = Loans("wdbc", "", "tumour", None, 2)
"""Ships with scikit-learn; for the small experiment where there is no data folder."""


def ensemble(
    problem: Problem, epsilon: float, *, task: type[Task], combine: Combine = "probabilities"
) -> Floats:
    """Let every silo release its own model at the whole epsilon, and combine them."""
    results = [
        run_job(
            task,
            problem.schema,
            {f"silo-{i}": [records]},
            epsilon=epsilon,
            delta=default_delta(problem.nominal_n),  # as the joint model has
            nominal_n=problem.nominal_n // len(problem.silos),
            target=problem.target,
        )
        for i, records in enumerate(problem.silos)
    ]
    return combined_probabilities(results, problem.test, combine=combine)


def _forest(problem: Problem, epsilon: float, **options: Any) -> Floats:
    return released(problem, epsilon, task=RandomForest, public_seed=problem.repeat, **options)


def _scikit(problem: Problem, epsilon: float, *, forest: bool) -> Floats:
    """Return scikit-learn's model of the pooled records, categories one-hot."""
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression

    def design(records: Records) -> Floats:
        values = problem.values(records)
        parts = [
            np.eye(c.levels)[values[:, j].round().astype(int)] if c.levels else values[:, [j]]
            for j, c in enumerate(problem.others)
        ]
        return np.hstack(parts)

    X, X_test = design(problem.train), design(problem.test)
    spread = np.maximum(X.std(axis=0), 1e-9)
    model = (
        RandomForestClassifier(300, min_samples_leaf=2, random_state=problem.repeat)
        if forest
        else LogisticRegression(max_iter=1000, C=0.1)
    )
    model.fit((X - X.mean(axis=0)) / spread, problem.labels(problem.train))
    predicted: Floats = model.predict_proba((X_test - X.mean(axis=0)) / spread)
    return predicted


_ANSWERS: Mapping[str, Mapping[str, Callable[[Problem, float], Answer]]] = {
    "joint": {
        "forest": _forest,
        "forest, random": partial(_forest, kind="random"),
        "forest, boosted": partial(_forest, kind="boosted"),
        "naive-bayes": partial(released, task=NaiveBayes),
        "logistic": partial(released, task=Logistic),
    },
    "ensemble": {
        "ensemble of forests": partial(ensemble, task=RandomForest),
        "ensemble of naive-bayes": partial(ensemble, task=NaiveBayes),
        "ensemble of naive-bayes, votes": partial(ensemble, task=NaiveBayes, combine="votes"),
        "ensemble of logistic": partial(ensemble, task=Logistic),
    },
    "no noise": {
        "scikit-learn RandomForest": partial(_scikit, forest=True),
        "scikit-learn LogisticRegression": partial(_scikit, forest=False),
    },
}
METHODS: Mapping[str, Method] = {
    name: Method(family, "all", answer, private=family != "no noise")
    for family, answers in _ANSWERS.items()
    for name, answer in answers.items()
}
"""All that are compared, by name."""

PAIRS: tuple[tuple[str, str], ...] = (
    ("forest", "ensemble of forests"),
    ("naive-bayes", "ensemble of naive-bayes"),
    ("logistic", "ensemble of logistic"),
)
"""A joint model and the ensemble of the same."""


# --- Work -----------------------------------------------------------------------------------------


def units(settings: Settings) -> list[Unit]:
    """Return the units."""
    files = {table: settings.file(table.name, SUFFIXES) for table in TABLES}
    asked: dict[Loans, Path | None] = {table: file for table, file in files.items() if file}
    if not settings.full:  # one table, and a small one
        asked = {t: file for t, file in asked.items() if t == TABLES[0]} or {STAND_IN: None}
    return [
        unit
        for table, file in asked.items()
        if settings.wants(table.name)
        for unit in units_of(
            measure,
            table=[table],
            file=[file],
            repeat=range(settings.runs(table.repeats, 2)),
            name=METHODS,
            epsilons=[EPSILONS if settings.full else (1.0,)],
        )
    ]


def measure(
    table: Loans, name: str, file: Path | None, repeat: int, epsilons: Sequence[float]
) -> list[TidyRow]:
    """Run a method on one split of a table; a row for each epsilon."""
    method = METHODS[name]
    problem = split(table, file, repeat)
    truth = problem.labels(problem.test)
    rows: list[TidyRow] = []
    for epsilon in epsilons if method.private else (math.inf,):
        predicted = method.answer(problem, epsilon)
        assert not isinstance(predicted, str)
        rows.append(
            {
                "dataset": table.name,
                "family": method.family,
                "method": name,
                "epsilon": epsilon,
                "repeat": repeat,
                **_scores(predicted, truth, table.costs),
            }
        )
    return rows


def _scores(
    predicted: Floats, truth: Integers, costs: tuple[tuple[float, ...], ...] | None
) -> dict[str, Value]:
    cost = None
    if costs is not None:
        cost = float(np.array(costs)[truth, best_class(predicted, costs)].mean())
    return {**auc_and_accuracy(predicted, truth), "cost": cost}


def auc_and_accuracy(predicted: Floats, truth: Integers) -> dict[str, Value]:
    """Return scores of the probabilities of two classes, shape (n, 2)."""
    from sklearn.metrics import roc_auc_score

    return {
        "auc": float(roc_auc_score(truth, predicted[:, 1])),
        "accuracy": float((predicted.argmax(axis=1) == truth).mean()),
    }


def split(table: Loans, file: Path | None, repeat: int) -> Problem:
    """Return silos of equal size and test records, drawn by a public seed."""
    schema, records = _stand_in() if file is None else _read(file, table.schema)
    return dealt("credit", schema, records, table.target, repeat, _TEST_SHARE)


@lru_cache(maxsize=2)
def _read(file: Path, schema_file: str) -> tuple[Schema, Records]:
    schema = Schema.load(SCHEMAS / schema_file)
    return schema, np.concatenate(list(read_source(file, schema)))


@lru_cache(maxsize=1)
def _stand_in() -> tuple[Schema, Records]:
    """Return tumours under the public bounds of their columns."""
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer(as_frame=True)
    public = BUNDLED[STAND_IN.name].schema(STAND_IN.name, tuple(bunch.data.columns))
    classes = tuple(map(str, bunch.target_names))
    target = Column(name=STAND_IN.target, type="category", categories=classes, min=0.0, max=1.0)
    schema = public.model_copy(update={"columns": (*public.columns, target)})
    labels = np.array(classes)[bunch.target]
    table = bunch.data.assign(**{STAND_IN.target: labels})
    return schema, np.concatenate(list(read_source(table, schema)))


# --- What is shown --------------------------------------------------------------------------------

_BY = ("dataset", "family", "method", "epsilon")
_SCORES = {
    "auc": "Area under the ROC curve",
    "accuracy": "Accuracy",
    "cost": "Cost of a decision, where a bad risk taken for a good one costs 5 and the reverse 1, "
    "and each decision is that of least expected cost; refusing everybody costs 0.7",
}


def figures(rows: Sequence[TidyRow], out: Path) -> list[Path]:
    """Write what the rows show."""
    cells = tidy.cells_of(rows, _BY, *_SCORES)
    table = [{**cell, "auc_half_width": cell["auc"].half_or_none} for cell in cells]
    page = tidy.write_page(out / "credit.md", _page(rows, cells))
    return [page, tidy.write_table(out / "credit.csv", table), _figure(cells, out / "credit.png")]


def _figure(cells: Sequence[Cell], path: Path) -> Path:
    paired_up = {name for pair in PAIRS for name in pair}
    kept = [c for c in cells if c["method"] in paired_up or not METHODS[c["method"]].private]
    return draw_panels(
        path,
        panels_of(kept, "{dataset}", "{method}", "epsilon", "auc"),
        title="Joint models and ensembles",
        x_label="ε",
        y_label="area under the ROC curve",
        x_log=True,
        columns=2,
        note="Three silos; means over splits with 95 % intervals.",
    )


def _page(rows: Sequence[TidyRow], cells: Sequence[Cell]) -> list[str]:
    full = " --full" if any(row["dataset"] == TABLES[-1].name for row in rows) else ""
    lines = tidy.prose("credit", full=full)
    for table in (*TABLES, STAND_IN):
        of_table = [cell for cell in cells if cell["dataset"] == table.name]
        if of_table:
            lines += ["", f"## {table.name}, {max(c['runs'] for c in of_table)} splits"]
            for score, what in _SCORES.items():
                if any(cell[score] for cell in of_table):
                    lines += ["", f"{what}:", "", *_table(of_table, score)]
    return lines + _beside(rows)


def _table(cells: Sequence[Cell], score: str) -> list[str]:
    """Return a row for each method with its score at every epsilon; without noise at the first."""
    epsilons = sorted({cell["epsilon"] for cell in cells} - {math.inf})
    methods: dict[Key, Cell] = {}
    for cell in cells:
        row = methods.setdefault((cell["family"], cell["method"]), {"Method": cell["method"]})
        shown = "-" if cell[score] is None else f"{cell[score]:.3f}"
        if cell["epsilon"] == math.inf:
            row |= dict.fromkeys(map(_heading, epsilons), "")
            row[_heading(epsilons[0])] = f"no noise: {shown}"
        else:
            row[_heading(cell["epsilon"])] = shown
    headings = ["Method", *map(_heading, epsilons)]
    return tidy.markdown(
        [{name: row.get(name, "-") for name in headings} for row in methods.values()]
    )


def _heading(epsilon: float) -> str:
    return f"ε = {epsilon:g}"


def _beside(rows: Sequence[TidyRow]) -> list[str]:
    """Return a table of joint models less ensembles of the same, over the same splits."""
    lines: list[Cell] = [
        {"dataset": name, "model": joint, "epsilon": epsilon, "apart": mean}
        for joint, apart in PAIRS
        for (name, epsilon), mean in tidy.paired(
            rows, ("dataset", "epsilon"), "auc", joint, apart
        ).items()
    ]
    if not lines:
        return []
    names = list(dict.fromkeys(line["dataset"] for line in lines))
    ahead: dict[Key, list[float]] = {}
    for line in lines:
        ahead.setdefault((line["dataset"], line["epsilon"]), []).append(line["apart"].mean)
    said = "; ".join(
        f"{min(means):+.3f} to {max(means):+.3f} on {name} at ε = {epsilon:g}"
        for (name, epsilon), means in ahead.items()
    )
    ordered = sorted(lines, key=lambda line: names.index(line["dataset"]))
    return tidy.prose("credit-pairs", ordered, said=said)
