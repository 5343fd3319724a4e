"""Credit scoring: joint private models and ensembles of silos' own models, on public tables.

A method is a function from a problem and an epsilon to the probabilities of the classes of the test
records, as in :mod:`cloister_lab.experiments.classify`; a row of `METHODS` adds one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from cloister.data import read_source
from cloister.estimators.ensemble import Combine, combined_probabilities
from cloister.estimators.forest import best_class
from cloister.jobs import run_job
from cloister.privacy.budget import default_delta
from cloister.schema import Column, Schema
from cloister.task import Floats, Integers, Records, Task
from cloister.tasks.supervised.forest import RandomForest
from cloister.tasks.supervised.logistic import Logistic
from cloister.tasks.supervised.naive_bayes import NaiveBayes
from cloister_lab.experiments.classify import SCHEMAS, Method, Problem, dealt, released
from cloister_lab.experiments.datasets import BUNDLED, SUFFIXES
from cloister_lab.experiments.figures import draw_panels, panels_of
from cloister_lab.experiments.records import (
    Key,
    MeanOf,
    Means,
    TidyRow,
    Value,
    means_of,
    paired,
    table_of,
    write_table,
)
from cloister_lab.experiments.run import Experiment, Settings, Unit, markdown, prose, write_page

EPSILONS = (0.1, 0.5, 1.0, 4.0)
_TEST_SHARE = 0.25


@dataclass(frozen=True)
class Loans:
    """A public table of a data folder with its schema.

    Parameters
    ----------
    name : str
        Of the file.
    schema : str
        Of the file beside this package.
    costs : tuple of tuple of float, or None
        ``costs[true][told]``, where the codebook gives them.
    repeats : int
        Splits of the full experiment.
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

    levels = np.delete([c.levels for c in problem.schema.public], problem.at)

    def design(records: Records) -> Floats:
        values = problem.values(records)
        parts = [
            np.eye(size)[values[:, j].round().astype(int)] if size else values[:, [j]]
            for j, size in enumerate(levels)
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
    told: Floats = model.predict_proba((X_test - X.mean(axis=0)) / spread)
    return told


_JOINT, _ENSEMBLE, _CLEAR = "joint", "ensemble", "no noise"

METHODS: Mapping[str, Method] = {
    "forest": Method(_JOINT, "all", _forest),
    "forest, random": Method(_JOINT, "all", partial(_forest, kind="random")),
    "forest, boosted": Method(_JOINT, "all", partial(_forest, kind="boosted")),
    "naive-bayes": Method(_JOINT, "all", partial(released, task=NaiveBayes)),
    "logistic": Method(_JOINT, "all", partial(released, task=Logistic)),
    "ensemble of forests": Method(_ENSEMBLE, "all", partial(ensemble, task=RandomForest)),
    "ensemble of naive-bayes": Method(_ENSEMBLE, "all", partial(ensemble, task=NaiveBayes)),
    "ensemble of naive-bayes, votes": Method(
        _ENSEMBLE, "all", partial(ensemble, task=NaiveBayes, combine="votes")
    ),
    "ensemble of logistic": Method(_ENSEMBLE, "all", partial(ensemble, task=Logistic)),
    "scikit-learn RandomForest": Method(_CLEAR, "all", partial(_scikit, forest=True), False),
    "scikit-learn LogisticRegression": Method(_CLEAR, "all", partial(_scikit, forest=False), False),
}
"""All that are compared, by name."""

PAIRS: tuple[tuple[str, str], ...] = (
    ("forest", "ensemble of forests"),
    ("naive-bayes", "ensemble of naive-bayes"),
    ("logistic", "ensemble of logistic"),
)
"""A joint model and the ensemble of the same."""


# --- Work -----------------------------------------------------------------------------------------


def _units(settings: Settings) -> list[Unit]:
    epsilons = EPSILONS if settings.full else (1.0,)
    files = {table: settings.file(table.name, SUFFIXES) for table in TABLES}
    asked: dict[Loans, Path | None] = {table: file for table, file in files.items() if file}
    if not settings.full:  # one table, and a small one
        asked = {t: file for t, file in asked.items() if t == TABLES[0]} or {STAND_IN: None}
    units = []
    for table, file in asked.items():
        if not settings.wants(table.name):
            continue
        repeats = settings.runs(table.repeats, 2)
        units += [
            Unit(
                f"{table.name} {name} epsilons={','.join(map(str, epsilons))} r={repeat}",
                partial(measure, table, name, file, repeat, epsilons),
            )
            for repeat in range(repeats)
            for name in METHODS
        ]
    return units


def measure(
    table: Loans, name: str, file: Path | None, repeat: int, epsilons: Sequence[float]
) -> list[TidyRow]:
    """Run a method on one split of a table; a row for each epsilon."""
    method = METHODS[name]
    problem = split(table, file, repeat)
    truth = problem.labels(problem.test)
    rows: list[TidyRow] = []
    for epsilon in epsilons if method.private else (math.inf,):
        told = method.answer(problem, epsilon)
        assert not isinstance(told, str)
        rows.append(
            {
                "dataset": table.name,
                "family": method.family,
                "method": name,
                "epsilon": epsilon,
                "repeat": repeat,
                **_scores(told, truth, table.costs),
            }
        )
    return rows


def _scores(
    told: Floats, truth: Integers, costs: tuple[tuple[float, ...], ...] | None
) -> dict[str, Value]:
    from sklearn.metrics import roc_auc_score

    cost = None
    if costs is not None:
        cost = float(np.array(costs)[truth, best_class(told, costs)].mean())
    return {
        "auc": float(roc_auc_score(truth, told[:, 1])),
        "accuracy": float((told.argmax(axis=1) == truth).mean()),
        "cost": cost,
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
    words = tuple(map(str, bunch.target_names))
    target = Column(name=STAND_IN.target, type="category", categories=words, min=0.0, max=1.0)
    schema = public.model_copy(update={"columns": (*public.columns, target)})
    labels = np.array(words)[bunch.target]
    table = bunch.data.assign(**{STAND_IN.target: labels})
    return schema, np.concatenate(list(read_source(table, schema)))


# --- What is shown --------------------------------------------------------------------------------

_BY = ("dataset", "family", "method", "epsilon")
_SCORES = ("auc", "accuracy", "cost")
_COST = (
    ", where a bad risk taken for a good one costs 5 and the reverse 1, and each decision is that "
    "of least expected cost; refusing everybody costs 0.7"
)


def _figures(rows: Sequence[TidyRow], out: Path) -> list[Path]:
    means = {name: means_of(rows, _BY, name) for name in _SCORES}
    table = [
        {**row, "auc_half_width": mean.half_or_none}
        for row, mean in zip(table_of(_BY, means), means["auc"].values(), strict=True)
    ]
    page = write_page(out / "credit.md", _page(rows, means))
    return [page, write_table(out / "credit.csv", table), _figure(means["auc"], out / "credit.png")]


def _figure(auc: Means, path: Path) -> Path:
    shown = {name for pair in PAIRS for name in pair} | {
        n for n, m in METHODS.items() if not m.private
    }
    kept = {key: mean for key, mean in auc.items() if key[2] in shown}
    panels = panels_of(kept, lambda key: str(key[0]), lambda key: str(key[2]))
    return draw_panels(
        path,
        panels,
        title="Joint models and ensembles",
        x_label="ε",
        y_label="area under the ROC curve",
        x_log=True,
        columns=2,
        note="Three silos; means over splits with 95 % intervals.",
    )


def _page(rows: Sequence[TidyRow], means: Mapping[str, Means]) -> list[str]:
    full = " --full" if any(row["dataset"] == TABLES[-1].name for row in rows) else ""
    lines = prose("credit", full=full)
    for table in (*TABLES, STAND_IN):
        keys = [key for key in means["auc"] if key[0] == table.name]
        if keys:
            lines += _table(table, keys, means)
    return lines + _beside(rows)


def _table(table: Loans, keys: list[Key], means: Mapping[str, Means]) -> list[str]:
    epsilons = sorted({float(key[3] or 0) for key in keys} - {math.inf})
    runs = max(means["auc"][key].runs for key in keys)
    lines = ["", f"## {table.name}, {runs} splits"]
    for score, what in (
        ("auc", "Area under the ROC curve"),
        ("accuracy", "Accuracy"),
        ("cost", "Cost of a decision"),
    ):
        if not any(key in means[score] for key in keys):
            continue
        told = _COST if score == "cost" else ""
        lines += ["", f"{what}{told}:", ""]
        table_rows = []
        for family, method in dict.fromkeys(key[1:3] for key in keys):
            found = [means[score].get((table.name, family, method, e)) for e in epsilons]
            clear = means[score].get((table.name, family, method, math.inf))
            cells = [_cell(mean) for mean in found]
            if clear is not None:
                cells = [f"no noise: {_cell(clear)}", *[""] * (len(epsilons) - 1)]
            table_rows.append([method, *cells])
        lines += markdown(["Method", *(f"ε = {e:g}" for e in epsilons)], table_rows)
    return lines


def _cell(mean: MeanOf | None) -> str:
    return "-" if mean is None else f"{mean:.3f}"


def _beside(rows: Sequence[TidyRow]) -> list[str]:
    """Return a table of joint models less ensembles of the same, over the same splits."""
    lines = []
    ahead: dict[Key, list[float]] = {}
    for joint, apart in PAIRS:
        for key, mean in paired(rows, ("dataset", "epsilon"), "auc", joint, apart).items():
            ahead.setdefault(key, []).append(mean.mean)
            name, epsilon = key
            lines.append((name, joint, f"{epsilon:g}", f"{mean.mean:+.3f}", f"{mean.error:.3f}"))
    if not lines:
        return []
    names = list(dict.fromkeys(name for name, _ in ahead))
    lines.sort(key=lambda line: names.index(line[0]))
    said = "; ".join(
        f"{min(means):+.3f} to {max(means):+.3f} on {name} at ε = {epsilon:g}"
        for (name, epsilon), means in ahead.items()
    )
    return [
        "",
        "## Joint model less ensemble",
        "",
        "Mean difference of the area under the curve on the same splits, at the same ε. Over the "
        f"three kinds of model, the joint one is ahead by {said}.",
        "",
        *markdown(("Table", "Model", "ε", "joint - ensemble", "standard error"), lines),
    ]


CREDIT = Experiment(
    "credit",
    "private credit scoring: forests, naive Bayes, logistic, and ensembles of silos' own models",
    _units,
    _figures,
    seconds_small=15,
    seconds_full=15 * 60,
)
