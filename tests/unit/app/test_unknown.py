"""What is not known has a reason in JSON; noise is simulated."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from cloister.app.job import make_plan
from cloister.app.release import Release
from cloister.app.unknown import NOISY, results_with_reasons
from cloister.core.plain import plain
from cloister.data.schema import Schema, schema_of
from cloister.privacy.budget import Budget
from cloister.tasks import TASKS
from cloister.tasks.examples import example_of
from cloister.testing import rerun

TRIAL = [
    {"name": "months", "type": "integer", "min": 0, "max": 61},
    {"name": "died", "type": "boolean"},
    {"name": "drug", "type": "category", "categories": ["old", "new", "rare"]},
]
COX = {"time": "months", "event": "died", "nominal_events": 2000}


def released(task: str, columns: Any, rows: Any, unit: Any = None, **options: Any) -> Release:
    schema = Schema(dataset="d", **(unit or {"unit": "row"}), columns=columns)
    n = max(len(rows), 100)
    plan = make_plan(
        TASKS[task], schema, ["here"], budget=Budget(1.0, 1e-6), nominal_n=n, **options
    )
    results = rerun(plan, plan.grid.encode(rows), np.random.default_rng(1))
    return Release(plan, results, (results,), plan.events(), "simulated", ())


def trial(n: int) -> Any:
    rng = np.random.default_rng(0)
    months = np.ceil(rng.exponential(30, n))
    drug = rng.integers(0, 2, n)  # nobody has the third
    return np.column_stack([months.clip(0, 60), months <= 60, drug]).astype(float)


def reasons(document: Any) -> list[str]:
    """Return all reasons of a document, and fail for a null without one."""
    match document:
        case {"value": None, "reason": str(reason)}:
            return [reason]
        case list():
            return [reason for item in document for reason in reasons(item)]
    assert document is not None
    return []


def test_a_hazard_ratio_that_is_not_known_has_the_reason_of_the_report() -> None:
    found = results_with_reasons(released("cox", TRIAL, trial(4000), **COX))
    known, unknown = found["hazard_ratio"]
    assert isinstance(known, float)
    assert unknown == {"value": None, "reason": "too few events of this category"}
    assert found["hazard_ratio_low"][1] == found["coef"][1] == unknown
    assert reasons(found["wald_p"]) == []


def test_a_test_without_enough_records_has_a_reason() -> None:
    options = {"time": "months", "event": "died", "by": "drug"}
    found = results_with_reasons(released("survival", TRIAL, trial(5), **options))
    assert found["log_rank_p"] == [{"value": None, "reason": "too few records at risk"}]
    assert set(reasons(found["stated_survival"])) == {"the curve ends before this time"}
    assert found["median_high"] == ["Infinity"] * 3


def test_a_p_value_of_repeated_records_has_a_reason() -> None:
    columns = [{"name": name, "type": "boolean"} for name in ("smokes", "ill")]
    unit = {"unit": "person", "max_rows": 4}
    rows = np.random.default_rng(0).integers(0, 2, (900, 2)).astype(float)
    options = {"tables": (("smokes", "ill"),), "tests": ("chi2",)}
    found = results_with_reasons(released("tabulate", columns, rows, unit, **options))
    text = "one person may have 4 records"
    assert found["table_1.chi2_p"] == [{"value": None, "reason": text}]


@pytest.mark.parametrize("task", sorted(set(TASKS) - {"lloyd"}))
def test_each_task_gives_a_reason_for_all_that_is_not_known(task: str) -> None:
    example = example_of(TASKS[task])
    schema = schema_of(example.columns)
    budget, options = Budget(1.0, 1e-6), dict(example.options)
    plan = make_plan(TASKS[task], schema, ["here"], budget=budget, nominal_n=600, **options)
    nobody = np.zeros((0, plan.grid.n_features), dtype=np.int32)
    results = rerun(plan, nobody, np.random.default_rng(0))
    release = Release(plan, results, (results,), plan.events(), "simulated", ())
    found = results_with_reasons(release)
    assert found.keys() == results.keys()
    for name, document in found.items():
        json.dumps(document, allow_nan=False)
        assert len(reasons(document)) == np.isnan(results[name]).sum()
        assert all(reasons(document))
    # A model keeps null, so that its file is read back.
    again = plain(results)
    assert all(
        np.array_equal(np.asarray(again[name], float), value, equal_nan=True)
        for name, value in results.items()
    )


def test_other_values_keep_their_text() -> None:
    document = {1: (np.float32(0.5), np.array([np.nan, -np.inf]), np.int64(3), None, True, "a")}
    assert plain(document, NOISY) == {"1": [0.5, [NOISY, "-Infinity"], 3, None, True, "a"]}
