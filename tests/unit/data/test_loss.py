"""How much of a source may be lost, and what its owner hears of it."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from cloister import (
    DPKaplanMeier,
    DPKMeans,
    DPLogisticRegression,
    DPTable,
    Ledger,
    Schema,
    dp_quantiles,
)
from cloister.core.errors import DataError, DataLossWarning, PlanError
from cloister.data import (
    Baskets,
    Remedy,
    check_file,
    is_above,
    loss_notice,
    read_source,
    refuse_loss,
    roles_of,
)
from cloister.data.loss import loss_notices, whole_of
from cloister.data.schema import Column
from cloister.privacy.budget import Budget

YES_NO = Schema(dataset="x", unit="row", columns=[{"name": "paid", "type": "boolean"}])
SEX = {"name": "sex", "type": "category", "categories": ["female", "male"]}
DAY = {"name": "day", "type": "date", "min": 2000.0, "max": 2030.0}
AGE = {"name": "age", "type": "number", "min": 0.0, "max": 9.0}


def schema(column: dict[str, Any], **more: Any) -> Schema:
    return Schema(dataset="x", unit="row", columns=[column], **more)


def frame(name: str, *cells: tuple[Any, int]) -> pd.DataFrame:
    return pd.DataFrame({name: [cell for cell, count in cells for _ in range(count)]})


def remedy(cells: Sequence[Any], column: dict[str, Any]) -> tuple[Remedy | None, str]:
    (found,) = check_file(pd.DataFrame({column["name"]: cells}), schema(column)).columns
    return found.remedy, found.sentence


@pytest.mark.parametrize(
    ("yes", "no", "spellings"),
    [
        ("J", "N", '{ true = ["J"] }'),
        ("Ja", "Nein", '{ true = ["Ja"], false = ["Nein"] }'),
        ("oui", "non", '{ true = ["oui"], false = ["non"] }'),
        ("S", "N", '{ true = ["S"] }'),
        ("2", "1", '{ true = ["2"], false = ["1"] }'),
        (2, 1, '{ true = ["2"], false = ["1"] }'),
        (2.0, 1.0, '{ true = ["2"], false = ["1"] }'),
        ("A", "B", "{ true = ..., false = ... }"),
    ],
)
def test_other_words_for_yes_and_no_have_a_remedy_that_mends_them(
    yes: Any, no: Any, spellings: str
) -> None:
    table = frame("paid", (yes, 300), (no, 1700))
    report = check_file(table, YES_NO)
    assert is_above(report)
    (found,) = report.remedies
    assert str(found) == f"spellings = {spellings}"
    assert str(found) in report.columns[0].sentence
    assert found.is_complete == ("..." not in spellings)
    if found.is_complete:
        column = {"name": "paid", "type": "boolean", "spellings": found.value}
        mended = check_file(table, schema(column))
        assert (mended.lost, mended.remedies) == (0, ())


def test_words_among_numbers_may_be_categories_or_absent() -> None:
    found, sentence = remedy(["m", "f"] * 9, AGE)
    assert found is None
    assert "a schema can list words as categories, or as absent" in sentence


def test_2_beside_0_and_1_is_no_code_of_r() -> None:
    report = check_file(frame("paid", (0, 50), (1, 50), (2, 50)), YES_NO)
    assert report.remedies == (Remedy("spellings", {"true": None, "false": None}, "paid"),)


@pytest.mark.parametrize(
    ("column", "cells", "expected"),
    [
        (SEX, ["Female", "male"], 'spellings = { female = ["Female"] }'),
        (SEX, ["F", "M"], 'spellings = { female = ["F"], male = ["M"] }'),
        (SEX, ["w", "x"], "spellings = { female = ..., male = ... }"),
        (DAY, ["31.12.1999", "1.2.2003"], 'format = "%d.%m.%Y"'),
        (DAY, ["31.12.99", "1.2.03"], 'format = "%d.%m.%y"'),
        (DAY, ["31/12/1999", "1/2/2003"], 'format = "%d/%m/%Y"'),
        (DAY, ["1/2/1999", "1/2/2003"], "format = ..."),
        (AGE, ["1,5", "2,75"], 'decimal = ","'),
        (AGE, ["1'234", "20'000"], 'thousands = "\'"'),
    ],
)
def test_a_remedy_is_a_setting_as_a_schema_has_it(
    column: dict[str, Any], cells: list[str], expected: str
) -> None:
    found, sentence = remedy(cells, column)
    assert str(found) == expected
    assert f"{expected} (" in sentence


@pytest.mark.parametrize(
    ("column", "cells", "said"),
    [
        (AGE, ["1", "2", "."], 'may mark missing cells: absent = ["."]'),
        ({"name": "paid", "type": "boolean"}, ["0", "1", "9"], 'absent = ["9"]'),
        ({"name": "paid", "type": "boolean"}, ["1", "+"], "set which of them is true"),
        (AGE, ["1", "<0.5"], "they are limits, not numbers"),
    ],
)
def test_codes_and_limits_are_not_taken_for_values(
    column: dict[str, Any], cells: list[str], said: str
) -> None:
    schema = Schema(dataset="d", unit="row", columns=[column])
    (cause,) = check_file(pd.DataFrame({column["name"]: cells}), schema).causes
    assert said in cause


def test_words_with_quotes_and_blanks_stay_toml() -> None:
    import tomllib

    text = str(Remedy("spellings", {"not known": ('"?"', "a\\b")}, "a"))
    assert tomllib.loads(text) == {"spellings": {"not known": ['"?"', "a\\b"]}}


def test_a_run_stops_above_the_limit_and_max_loss_raises_it() -> None:
    some = frame("age", ("x", 5), ("1", 95))
    more = frame("age", ("x", 6), ("1", 94))
    refuse_loss([check_file(some, schema(AGE))])
    report = check_file(more, schema(AGE))
    with pytest.raises(DataError, match=r"6 of 100 rows of the table \(6.0%\) are left out"):
        refuse_loss([report])
    refuse_loss([report], max_loss=0.06)
    with pytest.raises(DataError):
        refuse_loss([report], max_loss=0.05)
    for wrong in (-0.1, 1.1, float("nan"), True, "0.1"):
        with pytest.raises(PlanError, match="max_loss must be a number from 0 to 1"):
            refuse_loss([report], max_loss=wrong)  # type: ignore[arg-type]


def test_a_value_of_a_target_that_is_lost_stops_a_run_however_rare() -> None:
    report = check_file(frame("paid", ("J", 3), ("N", 997)), YES_NO)
    refuse_loss([report])
    with pytest.raises(DataError, match=r"All rows of the table with 'paid' = 'J' are left out."):
        refuse_loss([report], {"paid"})
    refuse_loss([report], {"paid"}, max_loss=0.05)


def test_one_odd_cell_of_a_target_stops_no_run() -> None:
    report = check_file(frame("paid", ("perhaps", 1), ("yes", 40), ("no", 59)), YES_NO)
    assert report.columns[0].lost == 1
    refuse_loss([report], {"paid"})


def test_all_problems_of_all_sources_are_one_error() -> None:
    words = check_file(frame("paid", ("J", 300), ("N", 1700)), YES_NO)
    commas = check_file(frame("age", ("1,5", 10)), schema(AGE))
    with pytest.raises(DataError) as caught:
        refuse_loss([words, commas])
    assert 'spellings = { true = ["J"] }' in str(caught.value)
    assert 'decimal = ","' in str(caught.value)
    assert "All rows of the table are left out.\nCorrect this and run it again." in str(
        caught.value
    )


def test_roles_are_found_in_steps_lists_and_models() -> None:
    class Model:
        target = 1

    options = {"target": "a", "tables": [["b"], ("c", "d")], "n": 3, "by": None, "covariates": "z"}
    assert roles_of(options) == {"a", "b", "c", "d"}
    steps = {"steps": [("standardise", {}), ("cox", {"event": "e", "time": "t", "group": 0})]}
    assert roles_of(steps, ["g", "h"]) == {"e", "g"}
    assert roles_of({"model": Model()}, ["g", "h"]) == {"h"}


def test_a_column_that_a_job_leaves_out_costs_no_row_and_is_not_named() -> None:
    both = Schema(dataset="x", unit="row", columns=[AGE, {"name": "paid", "type": "boolean"}])
    table = pd.DataFrame({"age": [1.0] * 10, "paid": ["J"] * 10})
    records = read_source(table, both, columns=["age"])
    assert records.report.lost == 0
    assert not loss_notice(records.report)
    refuse_loss(records.reports)
    assert check_file(table, both).lost == 10
    assert check_file(table, both, ["age"]).lost == 0


def test_baskets_of_another_layout_stop_and_a_small_catalogue_does_not(tmp_path: Path) -> None:
    goods = [{"name": name, "type": "boolean"} for name in ("milk", "bread")]
    catalogue = Schema(dataset="x", unit="row", columns=goods)
    long = tmp_path / "long.csv"
    long.write_text("receipt,item\n" + "".join(f"r{i},milk\n" for i in range(100)))
    with pytest.raises(DataError, match="are outside the catalogue"):
        refuse_loss([check_file(Baskets(long), catalogue)])
    refuse_loss([check_file(Baskets(long), catalogue)], max_loss=1.0)
    lines = [["milk", "bread", "nuts"]] * 9
    report = check_file(Baskets(lines), catalogue)
    refuse_loss([report])
    assert "9 of 27 items" in loss_notice(report)
    assert not loss_notice(check_file(Baskets([["milk"]] * 99 + [["nuts"]]), catalogue))


@pytest.mark.parametrize("kind", ["float64", "Float64", "arrow", "int64", "object", "string"])
def test_identifiers_must_not_be_floats(kind: str) -> None:
    owned = Schema(dataset="x", unit="id", max_rows=1, columns=[AGE])
    table: Any = pd.DataFrame({"id": np.arange(20), "age": 1.0})
    if kind == "arrow":
        table = pa.table({"id": pa.array(np.arange(20.0)), "age": np.ones(20)})
    else:
        table["id"] = table["id"].astype(kind)
    report = read_source(table, owned).report
    if kind in ("int64", "object", "string"):
        refuse_loss([report])
        return
    with pytest.raises(DataError, match="Unit column 'id' of the table has floats"):
        refuse_loss([report], max_loss=1.0)


def test_partitions_count_together() -> None:
    parts = [check_file(frame("age", ("x", n), ("1", 100 - n)), schema(AGE)) for n in (8, 0)]
    assert is_above(parts[0])
    assert not is_above(whole_of(parts))


# Estimators ---------------------------------------------------------------------------------------


def table_of(data: Any, **given: Any) -> DPTable:
    return DPTable([["paid"]], epsilon=5.0, bounds=YES_NO, nominal_n=2000, **given).fit(data)


def test_an_estimator_stops_before_it_spends(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.open_dataset("x", cap=Budget(9.0, 1e-6), unit="row")
    lost = frame("paid", ("J", 300), ("N", 1700))
    with pytest.raises(DataError, match=re.escape('spellings = { true = ["J"] }')):
        table_of(lost, ledger=ledger)
    with pytest.raises(DataError):
        table_of([frame("paid", ("y", 300)), lost], ledger=ledger)
    with pytest.raises(PlanError, match="max_loss"):
        table_of(lost, max_loss=2.0)
    assert ledger.spent("x") == 0
    with pytest.warns(DataLossWarning, match="15.0%"):
        table_of(lost, ledger=ledger, max_loss=0.15)
    assert ledger.spent("x") > 0
    ledger.dispose()


def test_a_small_loss_is_a_warning_for_each_source() -> None:
    few = frame("paid", ("", 10), ("y", 990), ("n", 1000))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        table_of([few, few, frame("paid", ("y", 5), ("n", 5))])
    said = [str(one.message) for one in caught if one.category is DataLossWarning]
    assert len(said) == 2
    assert "Column 'paid': 10 missing (10 rows)" in said[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataLossWarning)
        table_of(frame("paid", ("y", 1000), ("n", 1000)))


def test_decimal_commas_and_events_as_r_has_them_stop(tmp_path: Path) -> None:
    time = Column(name="t", type="number", min=0.0, max=60.0)
    event = Column(name="e", type="boolean")
    file = tmp_path / "comma.csv"
    file.write_text("t;e\n" + "1,25;0\n2,5;1\n" * 100)
    contract = Schema(dataset="x", unit="row", columns=[time, event])
    known: dict[str, Any] = {"epsilon": 2.0, "bounds": contract, "nominal_n": 200}
    with pytest.raises(DataError, match=re.escape('decimal = ","')):
        DPLogisticRegression(target="e", **known).fit(file)
    with pytest.raises(DataError, match=re.escape('decimal = ","')):
        DPKaplanMeier(time="t", event="e", **known).fit(file)
    coded = pd.DataFrame({"t": np.linspace(1, 50, 200), "e": [1, 2] * 100})
    with pytest.raises(DataError, match=re.escape('{ true = ["2"], false = ["1"] }')):
        DPKaplanMeier(time="t", event="e", **known).fit(coded)


def test_rows_beyond_max_rows_are_lost_unless_they_repeat_a_row() -> None:
    """Of each person, the first row is without the event, and the second with it."""
    agreed = Schema(dataset="x", unit="pid", max_rows=1, columns=YES_NO.columns)
    last = pd.DataFrame({"pid": range(400), "paid": True})
    first = last.assign(paid=False)
    report = check_file(pd.concat([first, last]), agreed)
    assert (report.rows, report.used, report.lost, report.repeated) == (800, 400, 400, 0)
    assert (
        "400 of 800 rows are beyond max_rows = 1 of their 'pid'; only the first rows count."
        in report.sentences()
    )
    with pytest.raises(DataError, match="are beyond max_rows"):
        refuse_loss([report])
    for table in (pd.concat([last, last, last]), pd.concat([last, last.assign(pid="x")])):
        report = check_file(table, agreed)
        assert report.repeated == report.beyond_max_rows
    assert read_source(pd.concat([first, last]), agreed, chunk_rows=7).report.lost == 400
    assert report.lost == 0


def test_arrays_have_a_limit_too() -> None:
    data = np.ones((100, 1))
    data[:10] = np.nan
    with pytest.raises(DataError):
        DPKMeans(1, epsilon=1.0, bounds=(0, 2), nominal_n=100).fit(data)


# Clipped values -----------------------------------------------------------------------------------

HEIGHTS = np.linspace(1.5, 2.1, 100)[:, None]  # m


@pytest.mark.parametrize(
    ("bounds", "side"),
    [
        ((0.0, 1.5), "99.0% of its values are above"),
        ((2.0, 3.0), "83.0% of its values are below"),
        ((1.6, 2.0), "17.0% of its values are below and 17.0% of its values are above"),
    ],
)
def test_the_owner_hears_of_clipped_values_and_their_side(
    bounds: tuple[float, float], side: str
) -> None:
    with pytest.warns(DataLossWarning, match=f"Column 'x0' of the array: {side} its bounds"):
        DPKMeans(1, epsilon=1.0, bounds=bounds, nominal_n=100).fit(HEIGHTS)


@pytest.mark.parametrize("fit", ["few", "search", "drop"])
def test_clipped_values_are_not_reported_if_few_or_searched_or_dropped(fit: str) -> None:
    low, rule = (1.53, "clip") if fit == "few" else (1.7, "clip")
    if fit == "drop":
        rule = "drop"
    height = {"name": "x0", "type": "number", "min": low, "max": 3.0, "out_of_range": rule}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        common: dict[str, Any] = {"epsilon": 1.0, "nominal_n": 100, "max_loss": 1.0}
        table = pd.DataFrame(HEIGHTS, columns=["x0"])
        if fit == "search":
            dp_quantiles(table, [0.5], bounds=schema(height), **common)
            records = {"a": read_source(table, schema(height))}
            steps = {"steps": [["bounds", {}], ["auto", {"n_clusters": 1}]]}
            assert loss_notices(records, steps, ("x0",), 1.0, "pipeline") == []
            assert loss_notices(records, {}, ("x0",), 1.0, "auto") != []
        else:
            DPKMeans(1, bounds=schema(height), **common).fit(table)
    assert not any("clipped" in str(warning.message) for warning in caught)


def test_a_missing_cell_is_no_value_that_could_be_clipped() -> None:
    cells = [None] * 90 + [1.0] * 9 + [99.0]
    (sentence,) = check_file(pd.DataFrame({"age": cells}), schema(AGE)).clips
    assert "10.0% of its values are above" in sentence


def test_the_owner_hears_of_many_cells_that_are_filled_in() -> None:
    filled = {**AGE, "missing": "midpoint"}
    of_few = pd.DataFrame({"age": [None] * 5 + [1.0] * 95})
    assert check_file(of_few, schema(filled)).clips == ()
    (sentence,) = check_file(pd.DataFrame({"age": [None] * 8 + [1.0] * 92}), schema(filled)).clips
    assert "8.0% of its cells are missing or not understood, and count as the value" in sentence
    assert check_file(pd.DataFrame({"age": [None] * 8 + [1.0] * 92}), schema(AGE)).clips == ()
    kept = {**AGE, "missing": "keep"}
    (sentence,) = check_file(pd.DataFrame({"age": [None] * 8 + [1.0] * 92}), schema(kept)).clips
    assert "are kept; the task completes them" in sentence


def test_a_missing_cell_names_the_rule_of_the_task_that_completes_it() -> None:
    lacking = pd.DataFrame({"age": [None] * 8 + [1.0] * 92})
    said = "another rule 'missing' ('keep' for imputed-regression) or"
    assert any(said in sentence for sentence in check_file(lacking, schema(AGE)).sentences())
    kept = check_file(lacking, schema({**AGE, "missing": "keep"})).for_task()
    assert any("another rule 'missing' or" in sentence for sentence in kept.sentences())


def test_only_a_task_that_completes_cells_keeps_their_rows(tmp_path: Path) -> None:
    kept = [{**AGE, "missing": "keep"}, {**AGE, "name": "lab", "missing": "keep"}, SEX]
    two = Schema(dataset="x", unit="row", columns=kept)
    rows = [",1,male\n"] * 8 + [",,male\n"] * 4 + ["1,,female\n"] * 2 + ["1,1,male\n"] * 86
    (path := tmp_path / "ward.csv").write_text("".join(["age,lab,sex\n", *rows]))
    report = check_file(path, two)
    assert (report.used, report.lost) == (100, 0)
    assert [report.for_task(names).lost for names in ([], ["age"], ["age", "lab"])] == [14, 6, 0]
    refuse_loss([report.for_task(["age", "lab"])])
    with pytest.raises(
        DataError,
        match=r"(?s)14 of 100 rows.*'age': 12 missing \(12 rows\); only imputed-regression",
    ):
        refuse_loss([report.for_task()])
    assert check_file(path, two, ["age", "sex"]).for_task().lost == 12
    assert whole_of([report, report]).for_task(["age"]).lost == 12
    records = {"ward": read_source(path, two)}
    assert loss_notices(records, {}, two.names, completed=["age", "lab"]) != []
    with pytest.raises(DataError, match=r"14 of 100 rows"):
        loss_notices(records, {}, two.names)
    numbers = Schema(dataset="x", unit="row", columns=kept[:2])
    with pytest.raises(DataError, match=r"14 of 100 rows"):
        DPKMeans(1, epsilon=1.0, bounds=numbers, nominal_n=100).fit(path)


def test_a_doubt_names_its_file_and_column(tmp_path: Path) -> None:
    text = "bmi\n" + "-9\n" * 10 + "25\n" * 90
    (path := tmp_path / "ward.csv").write_text(text)
    column: Any = {"name": "bmi", "type": "number", "min": 10, "max": 60}
    schema = Schema(dataset="x", unit="row", columns=[column])
    report = check_file(path, schema)
    with pytest.raises(DataError, match=r"^File '.*ward.csv': Column 'bmi': '-9' out"):
        refuse_loss([report])
    assert loss_notice(report).startswith("File '")
