"""A task of anybody says of its results what clusterings say of theirs; others have defaults."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from cloister.app.files import write_release
from cloister.app.forecast import category_warnings, expected, size_warnings
from cloister.app.job import make_plan, run_job
from cloister.app.present import present
from cloister.app.release import Release
from cloister.core.arrays import Floats, Results
from cloister.core.display import Bars, Display, Summary, Table, around, bare
from cloister.data.schema import Column, Schema
from cloister.privacy.budget import Budget
from cloister.protocol.plan import Plan
from cloister.protocol.task import Task
from cloister.tasks.count import Count
from cloister.testing import ZeroNoise

SCHEMA = Schema(
    dataset="ward",
    unit="row",
    columns=(
        Column(name="age", type="number", min=0, max=100),
        Column(name="work", type="category", categories=("desk", "field", "none")),
    ),
)


class Talking(Count):
    """A count with all optional members."""

    columnwise: ClassVar[dict[str, str]] = {"half_width": "Error of each column"}

    def forecast(self, noise_std: float, nominal_n: int, grid: Any) -> Results:
        return {"half_width": np.full(self.n_features, 5.0)}

    def plan_warnings(self, plan: Plan, forecast: Results) -> Iterator[str]:
        if forecast["half_width"][0] > 0.01 * plan.nominal_n:
            yield "too few to count."

    def category_warning(self, names: Sequence[str]) -> str:
        return f"{' '.join(names)} is not counted."

    def summary(
        self, results: Results, columns: tuple[str, ...], nominal_n: int, units: str
    ) -> Summary:
        few = results["count"][0] < nominal_n
        return Summary(f"The {units}", remarks=("some are missing",) if few else ())

    def course(self, history: Sequence[Results], ranges: Floats) -> tuple[Table, ...]:
        return (Table("Rounds", ("", "n"), (("all", float(len(history))),)),)

    def tables_of(self, plan: Plan, results: Results, schema: Schema) -> dict[str, Table]:
        rows = ((schema.dataset, 0.1, 3),)
        return {"wards": Table("Wards", ("ward", "share", "n"), rows)}


def released(task: type[Task]) -> Release:
    records = {"a": [np.zeros((90, 2), dtype=np.int32)]}
    return run_job(task, SCHEMA, records, epsilon=2.0, nominal_n=100, noise=ZeroNoise())


def plan_of(task: type[Task], nominal_n: int = 100) -> Plan:
    return make_plan(task, SCHEMA, ["a"], budget=Budget(2.0, 1e-6), nominal_n=nominal_n)


def test_what_a_task_says_comes_first_and_the_rest_is_made() -> None:
    own, made = present(released(Talking)), present(released(Count))
    assert own.title == "The records"
    assert own.remarks == ("some are missing",)
    assert (own.result, own.reliability) == (made.result, made.reliability)
    assert [table.title for table in own.course] == ["Rounds"]
    assert (made.title, made.remarks, made.course) == ("How many records", (), ())


def reliability_of(*displays: Display) -> str:
    class Drawing(Count):
        def displays(self, *_: Any) -> tuple[Display, ...]:
            return displays

    return present(released(Drawing)).reliability


def test_intervals_of_pictures_are_told_where_no_table_has_any() -> None:
    names = (("a", "b"),)
    drawn = Bars("x", around(np.array([1.0, 3.0]), 2.0, labels=names))
    alone = Table("y", ("", "value"), (("c", *bare(np.ones(1)).cells()),))
    assert reliability_of(drawn, alone).startswith("1 of 2 estimates do not differ")
    assert reliability_of(replace(drawn, estimate=bare(np.ones(2), labels=names)), alone) == (
        "No number of this result has an interval."
    )


def test_a_table_of_a_task_is_a_file_beside_the_model(tmp_path: Path) -> None:
    files = write_release(released(Talking), tmp_path, SCHEMA)
    assert list(files) == ["model", "sums", "wards"]
    assert files["wards"].read_text() == "ward,share,n\nward,0.1,3\n"
    assert list(write_release(released(Count), tmp_path, SCHEMA)) == ["model", "sums"]


@pytest.mark.parametrize(("nominal_n", "said"), [(100, ("too few to count.",)), (1000, ())])
def test_a_task_warns_of_its_plan(nominal_n: int, said: tuple[str, ...]) -> None:
    assert size_warnings(plan_of(Talking, nominal_n)) == said


def test_a_task_warns_of_categories_and_names_forecasts_of_columns() -> None:
    plan = plan_of(Talking)
    assert category_warnings(plan, SCHEMA) == ("work is not counted.",)
    assert category_warnings(plan_of(Count), SCHEMA) == ()
    (table,) = expected(plan)
    assert table.title == "Error of each column"
    assert [row[0] for row in table.rows] == ["age", "work"]
    assert expected(plan_of(Count))[0].headings == ("of", "error")
