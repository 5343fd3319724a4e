"""A job uses the columns that its options name, unless its task asks about all columns."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from cloister import Budget, Schema, make_plan
from cloister.app.job import columns_used
from cloister.cli import main
from cloister.core.capability import CAPABILITIES
from cloister.tasks import TASKS
from cloister.tasks.options import options_of
from cloister.tasks.regression.parse import parse_formula

SEX: dict[str, Any] = {"type": "category", "categories": ["female", "male"]}
COLUMNS: Any = [
    {"name": "age", "type": "number", "min": 0, "max": 100},
    {"name": "days", "type": "number", "min": 0, "max": 1000},
    {"name": "dead", "type": "boolean"},
    {"name": "sex", **SEX},
    {"name": "arm", **SEX},
    {"name": "lab", "type": "number", "min": 0, "max": 9},
]
SCHEMA = Schema(dataset="ward", unit="row", columns=COLUMNS)
FOLLOWED = {"time": "days", "event": "dead"}
EVENTS = {"nominal_events": 1000}
TREATED = {"treatment": "dead", "outcome": "age"}
BY_FORMULA = asdict(parse_formula("age ~ sex + arm"))
NAMED: list[tuple[str, dict[str, Any], tuple[str, ...] | None]] = [
    ("survival", FOLLOWED, ("days", "dead")),
    ("survival", {**FOLLOWED, "by": "sex"}, ("days", "dead", "sex")),
    ("cox", {**FOLLOWED, "covariates": ("arm",), "strata": "sex"}, ("days", "dead", "sex", "arm")),
    ("cox", FOLLOWED, None),
    ("cox-approximate", {**FOLLOWED, "covariates": ("sex",), **EVENTS}, ("days", "dead", "sex")),
    ("glm", {"target": "dead", "covariates": ["sex"], "family": "binomial"}, ("dead", "sex")),
    ("glm", {"target": "age", "formula": BY_FORMULA}, ("age", "sex", "arm")),
    ("glm", {"target": "age"}, None),
    ("treatment-effect", {"treatment": "dead", "outcome": "age"}, None),
    ("treatment-effect", {**TREATED, "covariates": ("lab",)}, ("age", "dead", "lab")),
    ("tabulate", {"tables": (("dead", "sex"), ("arm",))}, ("dead", "sex", "arm")),
    ("tabulate", {"means": ("age",), "by": ("sex",)}, ("age", "sex")),
    (
        "scorecard",
        {"target": "dead", "characteristics": ("sex",), "over": "arm"},
        ("dead", "sex", "arm"),
    ),
    ("evaluation", {"truth": "dead", "score": "lab"}, ("dead", "lab")),
    ("regression-evaluation", {"truth": "age", "prediction": "lab"}, ("age", "lab")),
    ("describe", {}, None),
    ("table1", {"by": "sex"}, None),
    ("logistic", {"target": "dead"}, None),
]


@pytest.mark.parametrize(("name", "options", "columns"), NAMED)
def test_a_plan_is_made_over_the_columns_that_its_options_name(
    name: str, options: dict[str, Any], columns: tuple[str, ...] | None
) -> None:
    used = columns_used(TASKS[name], options, SCHEMA)
    assert used == columns
    if used:
        large: dict[str, Any] = {"budget": Budget(9.0, 1e-6), "nominal_n": 1_000_000}
        plan = make_plan(TASKS[name], SCHEMA, ["a", "b"], columns=used, **large, **options)
        assert plan.columns == used


@pytest.mark.parametrize("name", CAPABILITIES)
def test_rows_of_the_catalogue_name_options_of_their_task(name: str) -> None:
    row = CAPABILITIES[name]
    declared = {option.name for option in options_of(TASKS[name])}
    assert {*row.only} <= {*row.names} <= declared
    assert bool(row.only) == bool(row.names)


def test_a_command_plans_over_the_columns_that_its_options_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those who die early have no laboratory value: without them, survival would look better."""
    (path := tmp_path / "ward.toml").write_text(SCHEMA.to_toml())
    task = ["--task", "survival", "--set", "time=days", "--set", "event=dead"]
    asked = ["plan", "--schema", str(path), *task, "--epsilon", "5", "--nominal-n", "1000"]
    for columns, expected in (([], ["days", "dead"]), (["--columns", "days,dead,lab"], None)):
        assert main([*asked, *columns, "--silos", "3", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)["plan"]["columns"]
        assert found == (expected or ["days", "dead", "lab"])
