"""The credit experiment: splits, ensembles of silos' own models, and what the page says."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from cloister.data.schema import Schema
from cloister.tasks.supervised.naive_bayes import NaiveBayes
from cloister_lab.experiments import credit
from cloister_lab.experiments.catalogue import EXPERIMENTS
from cloister_lab.experiments.classify import SCHEMAS
from cloister_lab.experiments.credit import METHODS, PAIRS, STAND_IN, TABLES, measure, split
from cloister_lab.experiments.records import TidyRow
from cloister_lab.experiments.run import Settings


def rows(**of_method: list[float]) -> list[TidyRow]:
    return [
        {
            "dataset": "german_credit",
            "family": METHODS[name.replace("_", " ")].family,
            "method": name.replace("_", " "),
            "epsilon": 1.0 if METHODS[name.replace("_", " ")].private else math.inf,
            "repeat": repeat,
            "auc": auc,
            "accuracy": 0.7,
            "cost": 0.6,
        }
        for name, aucs in of_method.items()
        for repeat, auc in enumerate(aucs)
    ]


def test_the_public_schema_of_german_credit_reads_every_record(shared_data: Path) -> None:
    schema = Schema.load(SCHEMAS / "german_credit.toml")
    problem = split(TABLES[0], shared_data / "german_credit.csv.gz", 0)
    assert sum(map(len, problem.silos)) + len(problem.test) == 1000
    assert schema.columns[-1].categories == ("1", "2")
    both = np.concatenate([problem.train, problem.test])
    assert problem.labels(both).sum() == 300


def test_a_split_is_repeatable_and_keeps_the_test_apart() -> None:
    first, again, other = (split(STAND_IN, None, repeat) for repeat in (0, 0, 1))
    assert all(np.array_equal(a, b) for a, b in zip(first.silos, again.silos, strict=True))
    assert not np.array_equal(first.test, other.test)
    seen = {row.tobytes() for row in first.train}
    assert not [row for row in first.test if row.tobytes() in seen]


def test_an_ensemble_runs_one_local_job_in_each_silo(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = split(STAND_IN, None, 0)
    profiles, spent = [], []
    run = credit.run_job

    def watched(*args: object, **options: object) -> object:
        result = run(*args, **options)
        profiles.append(result.plan.profile)
        spent.append(result.epsilon())
        return result

    monkeypatch.setattr(credit, "run_job", watched)
    told = credit.ensemble(problem, 1.0, task=NaiveBayes)
    assert profiles == ["local"] * 3
    assert np.allclose(spent, 1.0, rtol=1e-4)
    assert np.allclose(told.sum(axis=1), 1)


def test_every_method_gives_one_row_for_each_epsilon() -> None:
    for name, method in METHODS.items():
        if "scikit" in name:
            continue
        found = measure(STAND_IN, name, None, 0, (4.0,))
        assert [row["epsilon"] for row in found] == [4.0 if method.private else math.inf]
        assert found[0]["cost"] is None
        assert 0.6 < float(found[0]["auc"] or 0) <= 1, name


def test_costs_are_those_of_the_codebook() -> None:
    truth = np.array([0, 1, 1, 0])
    sure = np.array([[0.99, 0.01], [0.99, 0.01], [0.01, 0.99], [0.5, 0.5]])
    scores = credit._scores(sure, truth, TABLES[0].costs)
    assert scores["cost"] == pytest.approx((0 + 5 + 0 + 1) / 4)  # half a risk is refused


def test_the_page_sets_joint_models_beside_ensembles(tmp_path: Path) -> None:
    made = rows(
        forest=[0.8, 0.9],
        ensemble_of_forests=[0.7, 0.8],
        **{"scikit-learn_RandomForest": [0.95, 0.95]},
    )
    files = EXPERIMENTS["credit"].figures(made, tmp_path)
    assert [file.name for file in files] == ["credit.md", "credit.csv", "credit.png"]
    page = files[0].read_text()
    assert "| german_credit | forest | 1 | +0.100 | 0.000 |" in page
    assert "| forest | 0.850 ± 0.635 |" in page
    assert "no noise: 0.950" in page


def test_the_tables_and_pairs_name_what_there_is() -> None:
    assert {name for pair in PAIRS for name in pair} <= set(METHODS)
    assert EXPERIMENTS["credit"].units(Settings(Path("."), full=True)) == []
    small = EXPERIMENTS["credit"].units(Settings(Path(".")))
    assert all(unit.key.startswith("table=wdbc ") for unit in small)
