"""The table of private classifiers: splits, rows, and what the page says of them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from cloister.core.errors import PlanError
from cloister.data.schema import Schema
from cloister_lab.experiments import classify
from cloister_lab.experiments.catalogue import EXPERIMENTS
from cloister_lab.experiments.classify import (
    METHODS,
    RIVALS,
    SCHEMAS,
    Method,
    Problem,
    measure,
    split,
)
from cloister_lab.experiments.records import TidyRow
from cloister_lab.experiments.run import Settings, run_experiment


@pytest.fixture(scope="module")
def adult(shared_data: Path) -> Path:
    return shared_data / "adult_full.csv.gz"


def rows(**accuracies: list[float]) -> list[TidyRow]:
    return [
        {
            "dataset": "adult_full",
            "family": "naive Bayes",
            "columns": "all",
            "method": method,
            "epsilon": math.inf if method == "exact" else 1.0,
            "repeat": repeat,
            "accuracy": accuracy,
            "balanced_accuracy": accuracy,
            "log_loss": 0.5,
            "seconds": 0.1,
            "skipped": None,
        }
        for method, of_method in accuracies.items()
        for repeat, accuracy in enumerate(of_method)
    ]


def test_the_public_schema_of_adult_reads_every_record(adult: Path) -> None:
    schema = Schema.load(SCHEMAS / "adult.toml")
    problem = split(adult, "all", 0)
    assert sum(map(len, problem.silos)) + len(problem.test) == 48_842
    assert schema.columns[-1].categories == ("<=50K", ">50K")
    assert problem.labels(problem.train).mean() == pytest.approx(0.239, abs=0.005)


def test_a_split_is_repeatable_and_keeps_the_test_apart(adult: Path) -> None:
    first, again, other = (split(adult, "numbers", repeat) for repeat in (0, 0, 1))
    np.testing.assert_array_equal(first.test, again.test)
    assert (first.test != other.test).any()
    assert len(first.silos) == 3
    assert first.nominal_n == 40_000
    assert len(first.schema.columns) == 6


def test_naive_bayes_keeps_what_the_table_asks_of_it(adult: Path) -> None:
    """Accuracy lost on one split against scikit-learn; the table has the means of 20."""
    exact = measure("scikit-learn, categories and normal law", adult, 3, (1.0,))
    ours = measure("naive-bayes", adult, 3, (0.1, 1.0))
    assert [row["epsilon"] for row in ours] == [0.1, 1.0]
    best = float(exact[0]["accuracy"] or 0)
    assert float(ours[0]["accuracy"] or 0) > best - 0.03
    assert float(ours[1]["accuracy"] or 0) > best - 0.015


def test_a_method_that_cannot_run_says_why_and_the_page_repeats_it(
    adult: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(problem: Problem, epsilon: float) -> str:
        return "no such package"

    monkeypatch.setitem(METHODS, "theirs", Method("naive Bayes", "numbers", nothing))
    (row,) = measure("theirs", adult, 0, (1.0,))
    assert row["accuracy"] is None
    assert row["skipped"] == "no such package"
    classify.figures([*rows(ours=[0.8, 0.8]), row], tmp_path)
    assert "Not measured: theirs: no such package." in (tmp_path / "classify.md").read_text()


def test_the_page_has_losses_against_the_best_baseline(tmp_path: Path) -> None:
    found = rows(**{"naive-bayes": [0.79, 0.81], "exact": [0.82, 0.84]})
    files = classify.figures(found, tmp_path)
    assert all(file.stat().st_size > 0 for file in files)
    page = (tmp_path / "classify.md").read_text()
    assert "Baseline: exact, 0.8300." in page
    assert "| naive-bayes | 1 | 2 | 0.8000 ± " in page
    assert "| 0.0300 | 0.01 |" in page
    assert "## Naive Bayes, all columns" in page


def test_rivals_are_compared_split_by_split(tmp_path: Path) -> None:
    ours, theirs = RIVALS[0]
    page = classify._rivals(rows(**{ours: [0.80, 0.90], theirs: [0.70, 0.81]}))
    assert "| 1 | 2 | +0.0950 | 0.0050 |" in page[-1]


def test_without_its_table_there_is_nothing_to_run_in_full(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="nothing to run"):
        run_experiment(EXPERIMENTS["classify"], Settings(out=tmp_path, full=True), quiet=True)
