"""How far privately released measures of a fixed classifier are from the exact ones, on Adult."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from cloister.app.job import run_job
from cloister.core.randomness import public_generator
from cloister.data import array_records, read_source
from cloister.data.schema import Column, Schema
from cloister.protocol.task import Floats
from cloister.tasks.columns import Encoding, codes
from cloister.tasks.evaluation.classification import Evaluation
from cloister_lab.experiments import records as tidy
from cloister_lab.experiments.datasets import SUFFIXES
from cloister_lab.experiments.records import Key, TidyRow
from cloister_lab.experiments.run import Settings, Unit, units_of

_EPSILONS = (0.1, 0.5, 1.0, 4.0)
_TABLE, _SMALL, _TARGET, _SILOS = "adult_full", "breast_cancer", "income", 3
_SCHEMA = Path(__file__).parent / "schemas" / "adult.toml"
_RELEASES = 15
"""Of each trained model, with fresh noise."""
_WANTED = 0.01
"""Largest mean error of the area at epsilon 1."""

_SCORES = Schema(
    dataset="adult",
    unit="row",
    columns=(
        Column(name="truth", type="boolean", min=0.0, max=1.0),
        Column(name="score", type="number", min=0.0, max=1.0),
    ),
)


def units(settings: Settings) -> list[Unit]:
    """Return the units."""
    file = settings.file(_TABLE, SUFFIXES)
    at_hand = {_TABLE: file} if file else {}
    # the small version also has a small table that comes with scikit-learn
    asked = at_hand if settings.full else {**at_hand, _SMALL: None}
    return [
        unit
        for name, path in asked.items()
        if settings.wants(name)
        for unit in units_of(
            measure,
            name=[name],
            file=[path],
            repeat=range(settings.runs(20, 2)),
            epsilons=[_EPSILONS if settings.full else (1.0,)],
            releases=[_RELEASES if settings.full else 1],
        )
    ]


def measure(
    name: str, file: Path | None, repeat: int, epsilons: Sequence[float], releases: int = 1
) -> list[TidyRow]:
    """Train on half, measure on the other half in three silos; a row for each measure."""
    truth, score = _scored(file, repeat)
    table = np.column_stack([truth, score])
    grid = _SCORES.grid()
    silos = {f"silo-{i}": array_records(table[i::_SILOS], grid) for i in range(_SILOS)}
    exact = _exact(truth, score)
    rows: list[TidyRow] = []
    for epsilon, release in product(epsilons, range(releases)):
        result = run_job(
            Evaluation,
            _SCORES,
            silos,
            epsilon=epsilon,
            nominal_n=int(float(f"{len(truth):.0e}")),
            truth="truth",
            score="score",
        )
        found = result.results
        for measure, value in exact.items():
            released, low, high = (float(found[measure + end][-1]) for end in ("", "_low", "_high"))
            rows.append(
                {
                    "dataset": name,
                    "epsilon": epsilon,
                    "repeat": repeat * releases + release,
                    "measure": measure,
                    "exact": value,
                    "released": released,
                    "error": abs(released - value),
                    "half_width": (high - low) / 2,
                    "covered": int(low <= value <= high),
                }
            )
    return rows


def _exact(truth: Floats, score: Floats) -> dict[str, float]:
    """Return the measures of scikit-learn."""
    from sklearn import metrics

    predicted = score > 0.5
    measures: dict[str, Any] = {
        "auc": metrics.roc_auc_score(truth, score),
        "accuracy": metrics.accuracy_score(truth, predicted),
        "balanced_accuracy": metrics.balanced_accuracy_score(truth, predicted),
        "f1": metrics.f1_score(truth, predicted),
        "kappa": metrics.cohen_kappa_score(truth, predicted),
        "log_loss": metrics.log_loss(truth, np.clip(score, 1e-3, 1 - 1e-3)),
        "brier": metrics.brier_score_loss(truth, score),
    }
    return {name: float(value) for name, value in measures.items()}


def _scored(file: Path | None, repeat: int) -> tuple[Floats, Floats]:
    """Return truth and score of the half that was held back."""
    from sklearn.linear_model import LogisticRegression

    design, truth = _read(file)
    order = public_generator("evaluate", repeat).permutation(len(truth))
    train, test = order[: len(order) // 2], order[len(order) // 2 :]
    model = LogisticRegression(max_iter=300).fit(design[train], truth[train])
    return truth[test].astype(np.float64), model.predict_proba(design[test])[:, 1]


@lru_cache(maxsize=1)
def _read(file: Path | None) -> tuple[Floats, Any]:
    if file is None:
        from sklearn.datasets import load_breast_cancer

        table = load_breast_cancer()
        return np.log1p(table.data), table.target
    schema = Schema.load(_SCHEMA)
    at, bits = schema.names.index(_TARGET), schema.grid().frac_bits
    records = np.concatenate(list(read_source(file, schema)))
    levels = tuple(column.levels for column in schema.public)
    design = Encoding(levels, bits, skip=(at,)).rows(records) / (1 << bits)
    return design, codes(records[:, at], levels[at], bits)


# --- What is shown --------------------------------------------------------------------------------


def figures(rows: Sequence[TidyRow], folder: Path) -> list[Path]:
    """Write what the rows show."""
    page = tidy.write_page(folder / "evaluate.md", as_lines(rows))
    return [page, tidy.write_table(folder / "evaluate.csv", rows)]


def as_lines(rows: Sequence[TidyRow]) -> list[str]:
    """Return the page: a line for each measure and epsilon."""
    by = ("dataset", "epsilon", "measure")
    largest: dict[Key, float] = {}
    for row in rows:
        key = tuple(row[name] for name in by)
        largest[key] = max(largest.get(key, 0.0), tidy.number(row, "error"))
    cells = tidy.cells_of(rows, by, "error", "half_width", "exact", "covered")
    for cell, worst in zip(cells, largest.values(), strict=True):
        cell["largest"] = worst
    return tidy.prose("evaluate", cells, releases=_RELEASES, wanted=_WANTED)
