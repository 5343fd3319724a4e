"""Missing cells: how they are read, that other tasks leave them out, and what versions give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cloister.app.forecast import expected, least_records, unknown_error
from cloister.app.in_process import run_plan
from cloister.app.job import make_plan
from cloister.core.arrays import Floats, Integers, Results
from cloister.core.errors import PlanError
from cloister.data import read_source
from cloister.data.schema import Column, Schema
from cloister.estimators.linear_model import DPGeneralizedLinearRegressor
from cloister.privacy.budget import Budget
from cloister.protocol.plan import Plan
from cloister.protocol.rows import sum_of_rows
from cloister.protocol.task import NO_VALUE, records_of
from cloister.tasks import TASKS
from cloister.tasks.regression.imputed import ImputedRegression
from cloister.testing import SimulatedNoise, ZeroNoise, check_task, zero_noise

N = 4000
EXACT = Budget(1e7, 1e-6)  # hardly any noise, so that nothing is cut


def schema(missing: str = "keep", *more: Column, **unit: Any) -> Schema:
    columns = (
        Column(name="a", type="number", min=-5, max=5),
        Column(name="b", type="number", min=-6, max=6, missing=missing),
        *more,
        Column(name="y", type="number", min=-9, max=11),
    )
    return Schema(**{"dataset": "wards", "unit": "row", **unit}, columns=columns)


def table(n: int = N) -> Floats:
    """Return a, b and y; records with a large y lack b more often."""
    rng = np.random.default_rng(1)
    a = rng.normal(0, 1, n)
    b = 0.5 * a + rng.normal(0, 1, n)
    y = 1 + 0.5 * a + b + rng.normal(0, 1, n)
    b[rng.random(n) < 1 / (1 + np.exp(1.5 - y))] = np.nan
    return np.column_stack([a, b, y])


def plan_of(task: str = "imputed-regression", by: Schema | None = None, **given: Any) -> Plan:
    made = {"budget": EXACT, "nominal_n": N, **given}
    return make_plan(TASKS[task], by or schema(), ("p", "q"), **made)


def released(plan: Plan, cells: Floats, by: Schema | None = None) -> Results:
    parts = {silo: read_source(cells[k::2], by or schema()) for k, silo in enumerate(plan.silos)}
    return run_plan(plan, parts, noise=ZeroNoise()).results


# Cells --------------------------------------------------------------------------------------------


def test_a_kept_cell_has_a_value_outside_every_box(tmp_path: Path) -> None:
    """In frames and files, also if its type is wrong; a cell out of range is clipped as before."""
    (tmp_path / "f.csv").write_text("a,b,y\n1,,2\n1,what,2\n1,9,2\n,3,2\n1,3,2\n")
    steps = np.concatenate(list(read_source(tmp_path / "f.csv", schema())))
    assert (steps[:, 1] == NO_VALUE).tolist() == [True, True, False, False]
    assert steps[2, 1] == 1 << 16
    frame = np.array([[1, np.nan, 2], [1, 3, 2], [np.nan, 3, 2]])
    steps = np.concatenate(list(read_source(frame, schema())))
    assert (steps[:, 1] == NO_VALUE).tolist() == [True, False]


@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("glm", {"target": "y"}),
        ("statistics", {}),
        ("count", {}),
        ("fastlloyd", {"n_clusters": 2}),
        ("quantiles", {}),
    ],
)
def test_every_other_task_leaves_the_record_out(task: str, options: dict[str, Any]) -> None:
    cells, found = table(), []
    for rule in ("keep", "drop"):
        by = schema(rule)
        found.append(released(plan_of(task, by, **options), cells, by))
    for key, value in found[0].items():
        np.testing.assert_array_equal(value, found[1][key], err_msg=key)


def test_a_record_that_lacks_its_target_is_left_out() -> None:
    records = np.array([[0, NO_VALUE, 0], [0, 0, NO_VALUE], [NO_VALUE, 0, 0]], dtype=np.int32)
    task = plan_of(target="y").task
    assert records_of(task, records).tolist() == [[0, NO_VALUE, 0]]


def test_one_row_of_cells_changes_a_sum_by_its_bound_at_most() -> None:
    """From cells to vectors, in the state after each round, with cells of all kinds."""
    rows = [[1, "", 3], [5, "x", -9], ["-5", 6, 11], [0, None, 0], [9, -99, 99], [4.5, "", 10.9]]
    plan = plan_of(target="y", budget=Budget(2.0, 1e-6))
    task, tried = plan.task, 0
    known = {name: np.ones(v.shape, dtype=np.int64) for name, v in task.start().items()}

    def vector(rows: list[list[Any]], t: int) -> Integers:
        found = np.concatenate(list(read_source(rows, schema())))
        sums = task.contribute(t, known, records_of(task, found))
        assert (sums == sum_of_rows(task, t, known, records_of(task, found))).all()
        return sums

    for t in range(task.rounds):
        whole, ends = vector(rows, t), np.cumsum([block.size for block in task.blocks(t)])[:-1]
        for k in range(len(rows)):
            change = (whole - vector(rows[:k] + rows[k + 1 :], t)).astype(object)
            for block, part in zip(task.blocks(t), np.split(change, ends), strict=True):
                assert (part**2).sum() <= block.l2_squared
                assert np.abs(part).sum() <= block.l1
                tried += change.any()
    assert tried


# Plans --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("by", "options", "says"),
    [
        (schema("drop"), {}, "columns with missing = 'keep'"),
        (
            schema(
                "keep",
                Column(name="c", type="category", categories=("u", "v", "w"), missing="keep"),
            ),
            {},
            "of numbers or of two categories, got \\['b', 'c'\\]",
        ),
        (schema("keep", unit="person", max_rows=2), {}, "one record of each unit.*max_rows = 1"),
        (
            schema("keep", unit="person", max_rows=1, max_silos_per_person=2),
            {},
            "one record of each unit",
        ),
        (schema("keep", unit="silo"), {}, "one record of each unit"),
        (schema(), {"nominal_n": 300, "budget": Budget(1.0, 1e-6)}, "noise would hide the model"),
    ],
)
def test_what_cannot_be_completed_is_refused(by: Schema, options: Any, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        plan_of(by=by, target="y", **options)


def test_a_person_with_one_row_is_as_a_row() -> None:
    """A data set whose ledger counts persons could not be completed at all."""
    persons = schema("keep", unit="person", max_rows=1)
    frame = pd.DataFrame(table(), columns=["a", "b", "y"]).assign(person=range(N))
    repeated = pd.concat([frame, frame.assign(y=9)])  # second rows do not count
    found = released(plan_of(by=persons, target="y"), repeated, persons)
    rows = released(plan_of(target="y"), table())
    np.testing.assert_array_equal(found["coef"], rows["coef"])


def test_a_plan_says_which_records_count() -> None:
    assert "a missing cell in any column except 'b' is left out" in plan_of(target="y").counted()
    alone = plan_of("glm", target="y")
    assert "a missing cell in any of these 3 columns is left out" in alone.counted()


def test_a_category_may_have_the_name_of_the_rule() -> None:
    column = Column(name="c", type="category", categories=("keep", "end"), missing="keep")
    assert not column.keeps_missing
    assert column.fill_value == 0.0


# Estimates ----------------------------------------------------------------------------------------


def by_expectation(cells: Floats) -> Floats:
    """Return least squares on expected products, given least squares of b on complete records."""
    a, b, y = cells.T
    lacks, one = np.isnan(b), np.ones(len(a))
    known = np.column_stack([a, y, one])
    weights, square, *_ = np.linalg.lstsq(known[~lacks], b[~lacks], rcond=None)
    filled = np.where(lacks, known @ weights, b)
    rows = np.column_stack([a, filled, one])
    products = rows.T @ rows
    products[1, 1] += lacks.sum() * square[0] / (~lacks).sum()
    return np.linalg.solve(products, rows.T @ y)[:2]


def test_without_noise_it_is_least_squares_on_expected_products() -> None:
    cells = table()
    results = released(plan_of(target="y"), cells)
    assert results["coef"] == pytest.approx(by_expectation(cells), abs=0.01)
    assert results["lacking"] == pytest.approx([np.isnan(cells[:, 1]).mean()], abs=1e-3)
    assert (results["missing_information"] > 0.2).all()
    assert (results["missing_information"] < 0.6).all()


def test_without_missing_cells_it_is_the_task_glm() -> None:
    cells = np.nan_to_num(table())
    ours, plain = (
        released(plan_of(task, target="y"), cells) for task in ("imputed-regression", "glm")
    )
    assert ours["coef"] == pytest.approx(plain["coef"], abs=2e-3)
    assert ours["missing_information"] == pytest.approx([0, 0], abs=1e-3)


def test_the_estimator_completes_and_survives_a_file(tmp_path: Path) -> None:
    import pandas as pd

    frame = pd.DataFrame(table(), columns=["a", "b", "y"])
    kind = zero_noise(DPGeneralizedLinearRegressor)
    about: dict[str, Any] = {"epsilon": 2.0, "bounds": schema(), "target": "y", "nominal_n": N}
    model = kind(missing="impute", **about).fit(frame)
    assert model.coef_ == pytest.approx([0.5, 1.0], abs=0.08)
    of_complete = kind(**about, max_loss=1.0).fit(frame)
    assert abs(of_complete.coef_[1] - 1.0) > 0.09
    assert model.lacking_.shape == (1,)
    model.save(tmp_path / "model.json")
    again = kind.load(tmp_path / "model.json", bounds=schema())
    assert again.missing == "impute"
    new = frame.dropna()[:5]
    assert (again.predict(new) == model.predict(new)).all()


def test_the_estimator_refuses_what_it_would_ignore() -> None:
    with pytest.raises(PlanError, match="missing='impute' has no offset"):
        DPGeneralizedLinearRegressor(
            epsilon=1.0, bounds=schema(), target="y", missing="impute", offset="a"
        ).fit(table())
    with pytest.raises(PlanError, match="'drop' or 'impute'"):
        DPGeneralizedLinearRegressor(epsilon=1.0, bounds=schema(), target="y", missing="guess").fit(
            table()
        )


# The audit ----------------------------------------------------------------------------------------


class EachRecordTwice(ImputedRegression):
    """Adds each record twice."""

    rows = None  # the kernel alone, which nothing checks

    def contribute(self, t: int, state: Any, records: Any) -> Integers:
        """Return twice the sums."""
        return 2 * super().contribute(t, state, records)


def test_the_laws_find_a_twin_that_adds_too_much() -> None:
    task = plan_of(target="y", budget=Budget(2.0, 1e-6)).task
    corner = np.array([[1 << 16, NO_VALUE, 1 << 16]], dtype=np.int32)
    state = {name: np.ones(v.shape, dtype=np.int64) for name, v in task.start().items()}
    check_task(task, [corner], [state])
    twin = EachRecordTwice(**{one.name: getattr(task, one.name) for one in fields(task)})
    with pytest.raises(AssertionError):
        check_task(twin, [corner], [state])


def seen_in(plan: Plan, seen: int) -> Results:
    """Return the results of records of which only the first may have the incomplete column."""
    cells = table()
    cells[seen:, 1] = np.nan
    parts = {silo: read_source(cells[k::2], schema()) for k, silo in enumerate(plan.silos)}
    return run_plan(plan, parts, noise=SimulatedNoise(1)).results


@pytest.mark.parametrize("seen", [0, 300])
def test_coefficients_are_not_known_if_hardly_a_cell_was_seen(seen: int) -> None:
    """A column that no silo keeps: its values are guesses, and so are those of its coefficient."""
    plan = plan_of(target="y", budget=Budget(2.0, 1e-6))
    results = seen_in(plan, seen)
    assert np.isnan(results["coef"]).all()
    assert np.isinf(results["coef_population_high"]).all()
    assert results["lacking"][0] > 0.9
    (doubt,) = plan.task.doubts(results, plan.columns)
    assert "noise hides all" in doubt


LAWS: dict[str, Callable[[np.random.Generator, int], Floats]] = {
    "normal": lambda rng, n: rng.normal(0, 1, n),
    "skewed": lambda rng, n: rng.gamma(2, 1, n) - 2,
    "long tails": lambda rng, n: rng.standard_t(3, n),
    "no tails": lambda rng, n: rng.uniform(-1.7, 1.7, n),
}


@pytest.mark.parametrize("law", LAWS)
def test_no_coefficient_is_known_if_residuals_are_not_normal(law: str) -> None:
    """A textbook that draws normal residuals misses by a sixth where they are skewed."""
    rng = np.random.default_rng(4)
    n = 10_000
    a = rng.normal(0, 1, n)
    b = 0.5 * a + LAWS[law](rng, n)
    y = 0.6 * a + 0.8 * b + rng.normal(0, 1, n)
    b[rng.random(n) < 1 / (1 + np.exp(-y))] = np.nan
    plan = plan_of(target="y", nominal_n=n)
    results = released(plan, np.column_stack([a, b.clip(-6, 6), y.clip(-9, 11)]))
    assert (results["non_normal"] == (law != "normal")).all()
    assert np.isnan(results["coef"]).all() == (law != "normal")
    said = plan.task.summary(results, plan.columns, n, "records").reliability
    assert ("Residuals of b are not normal" in said) == (law != "normal")
    said = str(plan.task.displays(results, plan.columns))
    assert ("Residuals of b are not normal" in said) == (law != "normal")
    assert "Noise hides" not in said
    doubts = list(plan.task.doubts(results, plan.columns))
    expected = [True] * (law != "normal")
    assert ["residuals of b are not normal; transform" in doubt for doubt in doubts] == expected


def test_a_plan_has_the_number_of_complete_records_from_which_coefficients_are_known() -> None:
    plan = plan_of(target="y", budget=Budget(2.0, 1e-6))
    least, seen = least_records(plan), np.isfinite(table()[:, 1]).cumsum()
    assert least is not None
    # Five deviations of the noisy count on either side.
    below, above = (int(np.searchsorted(seen, least * part)) for part in (19 / 24, 29 / 24))
    assert np.isnan(seen_in(plan, below)["coef"]).all()
    assert np.isfinite(seen_in(plan, above)["coef"]).all()
    assert least_records(plan_of("glm", target="y", covariates=("a",))) is None
    (shown,) = expected(plan)
    assert shown.rows == (("complete records, for known coefficients", f"at least {least:,}"),)
    assert "normal law" in shown.note
    assert "missing cells" in unknown_error(plan)


def test_a_dishonest_state_without_records_stops_nothing() -> None:
    plan = plan_of(target="y", budget=Budget(2.0, 1e-6))
    task, records = plan.task, np.array([[0, NO_VALUE, 0]], dtype=np.int32)
    nothing = {name: np.zeros(v.shape, dtype=np.int64) for name, v in task.start().items()}
    check_task(task, [records], [nothing])
