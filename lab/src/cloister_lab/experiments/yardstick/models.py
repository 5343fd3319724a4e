"""Measures of predictions on records; coefficients have an experiment of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from cloister.data.schema import Column
from cloister_lab.experiments.yardstick.readings import (
    Figure,
    Judge,
    Question,
    Release,
    Target,
    column_of,
    design_of,
    figures,
    library,
)
from cloister_lab.experiments.yardstick.tables import Table, flag, number

if TYPE_CHECKING:
    from pandas import DataFrame

_GUESS, _SCORE = "guess", "score"


def _target(table: Table) -> Column:
    """Return the number that a regression explains: the first."""
    return table.numbers[0]


def _explains_number(table: Table) -> bool:
    return len(table.numbers) > 1 and table.time is None


def _explains_outcome(table: Table) -> bool:
    return bool(table.outcome and table.numbers)


def _columns(table: Table, target: str) -> tuple[Column, ...]:
    return tuple(c for c in (*table.numbers, *table.words) if c.name != target)


def _design(frame: DataFrame, table: Table, target: str) -> DataFrame:
    return design_of(frame, _columns(table, target))


# --- Measures of predictions ----------------------------------------------------------------------


def _with_scores(frame: DataFrame, table: Table) -> DataFrame:
    """Add the probabilities and classes of scikit-learn's model of all records."""
    pipeline = library("sklearn.pipeline").make_pipeline(
        library("sklearn.preprocessing").StandardScaler(),
        library("sklearn.linear_model").LogisticRegression(),
    )
    design = _design(frame, table, table.outcome)
    score = pipeline.fit(design, frame[table.outcome]).predict_proba(design)[:, 1]
    return frame.assign(**{_SCORE: score, _GUESS: (score > 0.5).astype(float)})


def _asks_scores(table: Table, _: int) -> Question:
    outcome = column_of(table, table.outcome)
    options = {"truth": outcome.name, "prediction": _GUESS, "score": _SCORE}
    return Question((outcome, flag(_GUESS), number(_SCORE, 0, 1)), options)


_SINGLE = ("accuracy", "balanced_accuracy", "macro_f1", "kappa", "auc", "log_loss", "brier")
_BY_CLASS = ("precision", "recall", "f1")
_BOXES = {"kappa": (-1.0, 1.0), "log_loss": (0.0, np.inf)}


def _evaluation(release: Release) -> list[Figure]:
    results = release.results
    planned = release.planned("confusion_half_width")
    cells = [f"count {truth}, {guess}" for truth in (0, 1) for guess in (0, 1)]
    found = figures(results, "confusion", cells, planned=planned)
    for key in _SINGLE:
        found += figures(results, key, [key], box=_BOXES.get(key, (0.0, 1.0)))
    for key in _BY_CLASS:
        found += figures(results, key, [f"{key} {k}" for k in (0, 1)], box=(0.0, 1.0))
    return found


def _measures(frame: DataFrame, table: Table) -> dict[str, Target]:
    """Return all measures by scikit-learn."""
    of = library("sklearn.metrics")
    truth, guess, score = (frame[name].to_numpy() for name in (table.outcome, _GUESS, _SCORE))
    scored: dict[str, Callable[..., Any]] = {
        "auc": of.roc_auc_score,
        "log_loss": of.log_loss,
        "brier": of.brier_score_loss,
    }
    guessed: dict[str, Callable[..., Any]] = {
        "accuracy": of.accuracy_score,
        "balanced_accuracy": of.balanced_accuracy_score,
        "kappa": of.cohen_kappa_score,
    }
    found: dict[str, Target] = {name: float(f(truth, score)) for name, f in scored.items()}
    found |= {name: float(f(truth, guess)) for name, f in guessed.items()}
    found["macro_f1"] = float(of.f1_score(truth, guess, average="macro", zero_division=np.nan))
    parts = of.precision_recall_fscore_support(truth, guess, labels=[0, 1], zero_division=np.nan)
    for name, values in zip(_BY_CLASS, parts, strict=False):
        found |= {f"{name} {k}": float(values[k]) for k in (0, 1)}
    confusion = of.confusion_matrix(truth, guess, labels=[0, 1])
    found |= {f"count {a}, {b}": float(confusion[a, b]) for a in (0, 1) for b in (0, 1)}
    return found


def _with_guesses(frame: DataFrame, table: Table) -> DataFrame:
    """Add the predictions of scikit-learn's linear model of all records, within the bounds."""
    target = _target(table)
    design = _design(frame, table, target.name)
    model = library("sklearn.linear_model").LinearRegression().fit(design, frame[target.name])
    return frame.assign(**{_GUESS: np.clip(model.predict(design), target.min, target.max)})


def _asks_guesses(table: Table, _: int) -> Question:
    target = _target(table)
    columns = (target, number(_GUESS, target.min, target.max))
    return Question(columns, {"truth": target.name, "prediction": _GUESS})


_ERRORS = ("bias", "mae", "rmse", "r2")


def _regression(release: Release) -> list[Figure]:
    planned = release.planned("bias_half_width")
    found = []
    for key in _ERRORS:
        own = planned if key == "bias" else None
        found += figures(release.results, key, [key], planned=own)
    return found


def _errors(frame: DataFrame, table: Table) -> dict[str, Target]:
    """Return errors by scikit-learn; the bias is the mean of prediction less truth."""
    of = library("sklearn.metrics")
    truth, guess = (frame[name].to_numpy() for name in (_target(table).name, _GUESS))
    return {
        "bias": float((guess - truth).mean()),
        "mae": float(of.mean_absolute_error(truth, guess)),
        "rmse": float(of.root_mean_squared_error(truth, guess)),
        "r2": float(of.r2_score(truth, guess)),
    }


JUDGES = (
    Judge(
        *("evaluation", _explains_outcome, _asks_scores, _evaluation, _measures),
        prepared=_with_scores,
    ),
    Judge(
        *("regression-evaluation", _explains_number, _asks_guesses, _regression, _errors),
        prepared=_with_guesses,
    ),
)
"""The judges of this family."""
