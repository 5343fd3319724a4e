"""``DPTable``: tables as pandas has them, intervals, tests, means by group, saved and read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cloister import DPTable, PlanError, Schema
from cloister.testing import zero_noise

SCHEMA = Schema(
    dataset="ward",
    unit="row",
    columns=[
        {"name": "work", "type": "category", "categories": ["state", "private"]},
        {"name": "ill", "type": "boolean"},
        {"name": "age", "type": "number", "min": 0, "max": 100},
    ],
)
PUBLIC = {"epsilon": 1.0, "bounds": SCHEMA, "nominal_n": 3000}


@pytest.fixture(scope="module")
def people() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    ill = rng.integers(0, 2, 3000)
    work = np.where(rng.random(3000) < 0.3 + 0.3 * ill, "private", "state")
    return pd.DataFrame({"work": work, "ill": ill, "age": rng.integers(0, 101, 3000)})


def test_one_table_is_pandas_crosstab(people: pd.DataFrame) -> None:
    model = zero_noise(DPTable)(["work", "ill"], **PUBLIC).fit([people[:1000], people[1000:]])
    exact = pd.crosstab(people["work"], people["ill"]).loc[["state", "private"]]
    np.testing.assert_array_equal(model.counts_.to_numpy(), exact.to_numpy())
    assert list(model.counts_.index) == ["state", "private"]
    assert model.counts_.columns.name == "ill"
    rows = model.interval("noise", of="row_shares")["value"].unstack(sort=False)
    np.testing.assert_allclose(rows.to_numpy(), exact.div(exact.sum(axis=1), axis=0).to_numpy())
    assert {"counts", "shown", "shares_population_low"} <= set(model.to_frame().columns)


def test_both_intervals_and_all_tests(people: pd.DataFrame) -> None:
    model = DPTable(["work", "ill"], **PUBLIC).fit(people)
    narrow, wide = (model.interval(kind) for kind in ("noise", "population"))
    assert (narrow["low"] > wide["low"]).all()
    assert (narrow["high"] < wide["high"]).all()
    assert list(wide.columns) == ["value", "low", "high"]
    for name in ("chi2", "trend", "odds_ratio", "relative_risk"):
        found = model.test(name)
        assert found["p"] < 1e-6
        assert ("value" in found) == name.endswith(("ratio", "risk"))
    ratio = model.test("odds_ratio")
    assert ratio["population_low"] < ratio["low"] < ratio["value"] < ratio["population_high"]


def test_several_tables_are_told_by_their_columns(people: pd.DataFrame) -> None:
    model = DPTable(["age", ["work", "ill"]], edges={"age": [40, 65]}, **PUBLIC)
    with pytest.raises(PlanError, match="tables must be a sequence"):
        model.fit(people)
    model = DPTable([["age"], ["work", "ill"]], edges={"age": [40, 65]}, **PUBLIC).fit(people)
    assert set(model.counts_) == {("age",), ("work", "ill")}
    assert list(model.interval(table="age").index) == ["below 40", "40 to 65", "65 or more"]
    assert model.test(table=["work", "ill"])["df"] == 1
    with pytest.raises(PlanError, match="table must be one of"):
        model.interval()
    with pytest.raises(PlanError, match="is not possible for"):
        model.test(table="age")


def test_means_by_group_are_a_frame_of_their_own(people: pd.DataFrame) -> None:
    model = zero_noise(DPTable)(means=["age"], by=["work"], **PUBLIC).fit(people)
    exact = people.groupby("work")["age"].mean()
    found = model.interval(of="age")
    np.testing.assert_allclose(found["value"], exact.loc[["state", "private"]], rtol=1e-4)
    assert model.counts_ == {}
    alone = DPTable(means=["age"], **PUBLIC).fit(people)
    assert alone.interval("noise", of="age").index.to_list() == ["all"]
    with pytest.raises(PlanError, match="kind must be"):
        model.interval("classical", of="age")


def test_means_beside_a_table_are_in_the_frame(people: pd.DataFrame) -> None:
    """They are paid for; a frame of the cells alone hid them."""
    model = zero_noise(DPTable)("work", means="age", by="work", **PUBLIC).fit(people)
    means = model.to_frame().loc["Means by work"].xs("age", level="column")["value"]
    exact = people.groupby("work")["age"].mean()
    pd.testing.assert_series_equal(means.sort_index(), exact, check_names=False, rtol=1e-3)
    assert list(model.to_frame("work").index) == ["state", "private"]


def test_a_saved_table_is_read_again(people: pd.DataFrame, tmp_path: Path) -> None:
    model = DPTable("work", **PUBLIC).fit(people)
    model.save(tmp_path / "model.json")
    again = DPTable.load(tmp_path / "model.json", bounds=SCHEMA)
    pd.testing.assert_series_equal(again.counts_, model.counts_)
    pd.testing.assert_frame_equal(again.to_frame(), model.to_frame())
