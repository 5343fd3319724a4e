"""Tables and means: those of pandas without noise, margins, refusals, reports."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from cloister import PlanError, Schema
from cloister.app.job import make_plan, run_job
from cloister.app.release import Release
from cloister.app.text import as_table, cell_text
from cloister.core.display import Bars, Estimate, Heatmap, Table
from cloister.privacy.budget import Budget
from cloister.tasks.tables.tabulate import Tabulate
from cloister.testing import SimulatedNoise, ZeroNoise

SCHEMA = Schema(
    dataset="ward",
    unit="row",
    columns=[
        {"name": "work", "type": "category", "categories": ["private", "state", "none"]},
        {"name": "smokes", "type": "boolean"},
        {"name": "ill", "type": "boolean"},
        {"name": "age", "type": "number", "min": 0, "max": 100},
        {"name": "weight", "type": "number", "min": 0, "max": 200},
    ],
)
N = 20_000


def people(n: int = N, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    smokes = rng.integers(0, 2, n)
    return pd.DataFrame(
        {
            "work": rng.choice(3, n, p=[0.6, 0.3, 0.1]),
            "smokes": smokes,
            "ill": rng.random(n) < 0.1 + 0.1 * smokes,
            "age": rng.integers(0, 101, n),
            "weight": rng.normal(80 - 5 * smokes, 12, n).clip(0, 200),
        }
    ).astype(float)


def released(table: pd.DataFrame, silos: int = 2, noise: Any = None, **options: Any) -> Release:
    records = SCHEMA.grid().encode(table.to_numpy())
    parts = {f"silo-{i}": [records[i::silos]] for i in range(silos)}
    chosen = {"epsilon": 1.0, "nominal_n": len(table), **options}
    return run_job(Tabulate, SCHEMA, parts, noise=noise or ZeroNoise(), **chosen)


def test_tables_without_noise_are_those_of_pandas() -> None:
    table = people()
    options = {"tables": [["work", "ill"], ["age", "smokes", "ill"]], "edges": {"age": [40, 65]}}
    found = released(table, silos=3, **options).results
    exact = pd.crosstab(table["work"], table["ill"]).to_numpy()
    np.testing.assert_array_equal(found["table_1.counts"], exact)
    np.testing.assert_allclose(found["table_1.shares"], exact / N)
    np.testing.assert_allclose(
        found["table_1.row_shares"], exact / exact.sum(axis=1, keepdims=True)
    )
    bins = pd.cut(table["age"], [-1, 39.5, 64.5, 101], labels=False)
    cube = table.groupby([bins, "smokes", "ill"]).size().to_numpy().reshape(3, 2, 2)
    np.testing.assert_array_equal(found["table_2.counts"], cube)
    np.testing.assert_allclose(found["table_2.row_shares"].sum(axis=-1), 1)


def test_means_without_noise_are_those_of_pandas() -> None:
    table = people()
    found = released(table, means=["weight", "age"], by=["work", "smokes"]).results
    groups = table.groupby(["work", "smokes"])
    np.testing.assert_allclose(found["means"], groups[["weight", "age"]].mean(), rtol=1e-4)
    np.testing.assert_array_equal(found["group_counts"][:, 0], groups.size())
    alone = released(table, means=["age"]).results
    assert alone["means"].shape == (1, 1)
    assert alone["means"][0, 0] == pytest.approx(table["age"].mean(), rel=1e-4)


def test_a_margin_is_summed_from_the_table_that_says_most_of_it() -> None:
    tables = [["smokes"], ["work", "smokes"], ["ill", "smokes"], ["smokes", "work"]]
    found = released(people(), tables=tables, noise=SimulatedNoise(1)).results
    task = make_plan(
        Tabulate, SCHEMA, ["a"], budget=Budget(1.0, 1e-6), nominal_n=N, tables=tables
    ).task
    assert [b.size for b in task.blocks(0)] == [6 + 4]
    np.testing.assert_allclose(found["table_1.counts"], found["table_3.counts"].sum(axis=0))
    np.testing.assert_allclose(found["table_4.counts"], found["table_2.counts"].T)
    assert found["table_1.noise"][0] == pytest.approx(found["table_3.noise"][0] * np.sqrt(2))


def test_weights_move_noise_from_one_table_to_another() -> None:
    tables = [["work"], ["ill"]]
    equal = released(people(), tables=tables).plan.task
    unequal = released(people(), tables=tables, weights=[3.0, 1.0]).plan.task
    assert isinstance(equal, Tabulate)
    assert isinstance(unequal, Tabulate)
    first, second = (np.array(task._noises(1.0)[:2]) for task in (equal, unequal))
    assert second[0] / first[0] == pytest.approx((2 / 3) ** 0.5, rel=1e-3)
    assert second[1] / first[1] == pytest.approx(2**0.5, rel=1e-3)
    assert unequal.blocks(0)[0].l2_squared == pytest.approx(equal.blocks(0)[0].l2_squared, rel=1e-4)


def test_tests_are_there_for_tables_that_they_fit_and_corrected_together() -> None:
    tables, tests = [["smokes", "ill"], ["work", "ill"], ["work"]], ["chi2", "odds_ratio"]
    found = released(people(), tables=tables, tests=tests, noise=SimulatedNoise(2)).results
    names = {name for name in found if name.endswith("_p")}
    assert names == {"table_1.chi2_p", "table_1.odds_ratio_p", "table_2.chi2_p"}
    assert found["table_1.chi2_p"][0] < 1e-6 < found["table_2.chi2_p"][0]
    assert found["table_2.chi2_holm"][0] == found["table_2.chi2_p"][0]
    assert found["table_1.odds_ratio_low"][0] > 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "tables or means must be given.* in Python DPTable"),
        ({"tables": [["work", "smokes", "ill", "age"]], "edges": {"age": [5]}}, "synthesise"),
        ({"tables": [["work", "work"]]}, "name a column only once"),
        ({"tables": [["work"], ["work"]]}, "tables must be different"),
        ({"tables": [["age"]]}, "edges must be given for 'age'"),
        ({"tables": [["work"]], "edges": {"age": [5]}}, "edges must name columns in tables"),
        ({"tables": [["age"]], "edges": {"age": [50, 20]}}, "the lower first"),
        ({"tables": [["work"]], "by": ["ill"]}, "needs means"),
        ({"means": ["age"], "by": ["ill", "smokes", "work"]}, "1 or 2 columns"),
        ({"means": ["ill"]}, "which has categories"),
        ({"tables": [["nobody"]]}, "nobody"),
        ({"tables": [["work"], ["ill"]], "weights": [1.0]}, "one for each of 2 measured tables"),
        ({"tables": [["work"]], "tests": ["chi2"]}, "needs a table of two columns; add"),
        ({"tables": [["work", "ill"]], "tests": ["odds_ratio"]}, "of two levels each"),
        ({"tables": [["age"]], "edges": {"age": list(np.linspace(1, 99, 20_001))}}, "20,000 cells"),
        (
            {"tables": [["work", "ill"]], "nominal_n": 20},
            "hide the table of work by ill: a cell has 3.33 records on average, and noise of 4.2",
        ),
        ({"means": ["age"], "by": ["work"], "nominal_n": 20}, "noise would hide"),
    ],
)
def test_what_cannot_be_answered_is_refused_before_it_costs(
    options: dict[str, Any], says: str
) -> None:
    with pytest.raises(PlanError, match=says):
        make_plan(
            Tabulate,
            SCHEMA,
            ["a"],
            budget=Budget(1.0, 1e-6),
            **{"nominal_n": 10**8, **options},
        )


def test_a_job_may_have_so_many_numbers_and_no_more() -> None:
    edges = {"age": list(np.linspace(1, 99, 900)), "weight": list(np.linspace(1, 199, 9))}
    tables = [["age", "weight", name] for name in ("smokes", "ill")]
    plan = make_plan(
        Tabulate,
        SCHEMA,
        ["a"],
        budget=Budget(1.0, 1e-6),
        nominal_n=10**8,
        tables=tables,
        edges=edges,
    )
    assert plan.task.blocks(0)[0].size == 2 * 901 * 10 * 2
    many = [[a, b] for a in ("work", "smokes", "ill") for b in ("age", "weight")]
    wide = {"age": list(np.linspace(1, 99, 6600)), "weight": list(np.linspace(1, 199, 6600))}
    with pytest.raises(PlanError, match="at most 131,072 numbers"):
        make_plan(
            Tabulate,
            SCHEMA,
            ["a"],
            budget=Budget(1.0, 1e-6),
            nominal_n=10**9,
            tables=[*many, ["smokes", "ill", "work"]],
            edges=wide,
            means=["age", "weight"],
            by=["age", "work"],
        )


def test_a_forecast_is_what_the_result_then_has() -> None:
    options = {"tables": [["smokes"], ["work", "ill"]], "means": ["weight"], "by": ["smokes"]}
    result = released(people(), silos=1, noise=SimulatedNoise(0), **options)
    plan, found = result.plan, result.results
    said = plan.task.forecast(plan.noise_std(plan.task.blocks(0)[0]), N, plan.grid)
    for i in (0, 1):
        width = found[f"table_{i + 1}.counts_high"] - found[f"table_{i + 1}.counts_low"]
        assert width.max() / 2 == pytest.approx(said["count_half_width"][i], rel=0.01)
    halves = (found["table_1.shares_high"] - found["table_1.shares_low"]) / 2
    # Of two cells, the margin of a share of one half is that of a rare one over the root of 2.
    assert halves.mean() == pytest.approx(said["share_half_width"][0] / np.sqrt(2), rel=0.05)
    rows = (found["table_2.row_shares_high"] - found["table_2.row_shares_low"]) / 2
    sizes = found["table_2.counts"].sum(axis=1, keepdims=True)
    of_average = (rows * sizes / sizes.mean()).max()
    assert 0.7 < of_average / said["share_half_width"][1] < 1.05
    means = (found["means_high"] - found["means_low"]) / 2
    assert 0.9 < means.mean() / said["mean_half_width"][0] < 1.2


def test_a_report_leaves_out_small_counts_and_says_that_this_protects_nobody() -> None:
    table = people()
    table.loc[:, "work"] = np.where(np.arange(N) < 3, 2, table["work"] % 2)
    options = {"tables": [["work"], ["work", "ill"]], "tests": ["chi2"], "minimum": 10.0}
    result = released(table, noise=SimulatedNoise(0), means=["age"], by=["work"], **options)
    assert result.results["table_1.counts"].shape == (3,)
    task = result.plan.task
    bars, first, sheet, second, means, chart, tests = task.displays(
        result.results, result.plan.columns
    )
    kinds = [type(d) for d in (bars, first, sheet, second, means, chart, tests)]
    assert kinds == [Bars, Table, Heatmap, Table, Table, Bars, Table]
    for display in (bars, first, sheet, second, means, chart):
        text = str(as_table(display))
        assert "'<" in text, display.title
        assert "Suppression is cosmetic" in text
        assert "nan" not in text.replace("nominal", "")
    assert as_table(tests).rows[0][1] == "independence"


def test_a_summary_counts_the_numbers_of_every_table_and_of_means() -> None:
    """Cells of a second table that noise hid were counted nowhere: 8 of 8 were exact."""
    tables = {"tables": [["smokes"], ["weight"]], "edges": {"weight": [10, 20, 30]}}
    for options, exact, of in ((tables, 3, 6), ({**tables, "means": ["age"]}, 4, 7)):
        found = released(people(), noise=SimulatedNoise(0), **options)
        task = found.plan.task
        said = task.summary(found.results, found.plan.columns, N, "records")
        assert said.reliability.startswith(f"{exact} of {of} numbers are exact")
        assert said.result[0] == "The largest cell of the first table is "


def test_a_ratio_without_an_upper_bound_says_so() -> None:
    table = people(4000)
    table["ill"] = np.where(table["smokes"] == 1, table["ill"], 0)
    options = {"tables": [["smokes", "ill"]], "tests": ["odds_ratio", "relative_risk"]}
    result = released(table, noise=SimulatedNoise(4), **options)
    displays = result.plan.task.displays(result.results, result.plan.columns)
    (ratios,) = [d for d in displays if d.title == "Ratios"]
    assert isinstance(ratios, Table)
    for _, cell in ratios.rows:
        assert isinstance(cell, Estimate)
        assert cell.low > 1
        assert "no upper bound" in cell_text(cell)
    assert "ill=true, smokes=true over false" in str(ratios.rows[0][0])
