"""How far privately released measures of a fixed classifier are from the exact ones, on Adult."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from cloister.data import array_records, read_source
from cloister.jobs import run_job
from cloister.randomness import public_generator
from cloister.schema import Column, Schema
from cloister.task import Floats
from cloister.tasks.columns import Encoding, codes
from cloister.tasks.evaluation.classification import Evaluation
from cloister_lab.experiments.datasets import SUFFIXES
from cloister_lab.experiments.records import TidyRow, means_of, number, write_table
from cloister_lab.experiments.run import Experiment, Settings, Unit, markdown, prose, write_page

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


def _units(settings: Settings) -> list[Unit]:
    file = settings.file(_TABLE, SUFFIXES)
    at_hand: dict[str, Path | None] = {} if file is None else {_TABLE: file}
    if not settings.full:  # a small table that comes with scikit-learn
        at_hand[_SMALL] = None
    epsilons = _EPSILONS if settings.full else (1.0,)
    releases = _RELEASES if settings.full else 1
    return [
        Unit(
            f"{name} epsilons={','.join(map(str, epsilons))} x{releases} r={repeat}",
            partial(measure, name, path, repeat, epsilons, releases),
        )
        for name, path in at_hand.items()
        if settings.wants(name)
        for repeat in range(settings.runs(20, 2))
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

    told = score > 0.5
    measures: dict[str, Any] = {
        "auc": metrics.roc_auc_score(truth, score),
        "accuracy": metrics.accuracy_score(truth, told),
        "balanced_accuracy": metrics.balanced_accuracy_score(truth, told),
        "f1": metrics.f1_score(truth, told),
        "kappa": metrics.cohen_kappa_score(truth, told),
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


def _figures(rows: Sequence[TidyRow], folder: Path) -> list[Path]:
    page = write_page(folder / "evaluate.md", as_lines(rows))
    return [page, write_table(folder / "evaluate.csv", rows)]


def as_lines(rows: Sequence[TidyRow]) -> list[str]:
    """Return the page: a line for each measure and epsilon."""
    by = ("dataset", "epsilon", "measure")
    errors, halves, exact, covered = (
        means_of(rows, by, name) for name in ("error", "half_width", "exact", "covered")
    )
    worst = {
        key: max(number(r, "error") for r in rows if tuple(r[name] for name in by) == key)
        for key in errors
    }
    lines = prose("evaluate", releases=_RELEASES, wanted=_WANTED)
    headings = ("table", "epsilon", "measure", "runs", "exact", "error", "largest")
    return [
        *lines,
        *markdown(
            (*headings, "half-width", "covered"),
            (
                (
                    *(key[0], f"{key[1]:g}", key[2], mean.runs, f"{exact[key].mean:.4f}"),
                    *(f"{mean.mean:.5f}", f"{worst[key]:.5f}", f"{halves[key].mean:.5f}"),
                    f"{covered[key].mean:.0%}",
                )
                for key, mean in errors.items()
            ),
        ),
    ]


EVALUATE = Experiment(
    name="evaluate",
    what="error of privately released measures of a classifier on Adult",
    units=_units,
    figures=_figures,
    seconds_small=10,
    seconds_full=120,
)
