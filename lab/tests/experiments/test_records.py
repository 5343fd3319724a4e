from __future__ import annotations

import math
from pathlib import Path

import pytest

from cloister.core.errors import DataError
from cloister_lab.experiments.compare import AREA, summarise
from cloister_lab.experiments.records import (
    STAMP,
    TidyRow,
    append_tidy,
    cells_of,
    load_tidy,
    means_of,
    starts,
    write_table,
)
from cloister_lab.experiments.sweep import METRICS

ROW: TidyRow = {
    "dataset": "7",
    "method": "fastlloyd",
    "epsilon": 0.5,
    "repeat": 0,
    "plan_digest": "12e4",
    **dict.fromkeys(METRICS),
    "nicv": 0.1,
}


def test_rows_read_back_equal(tmp_path: Path) -> None:
    rows = [ROW, {**ROW, "repeat": 1, "nicv": 1 / 3, "epsilon": math.inf}]
    append_tidy(tmp_path / "runs.csv", rows[:1])
    append_tidy(tmp_path / "runs.csv", rows[1:])
    read = load_tidy(tmp_path / "runs.csv")
    assert read == rows
    assert [type(row["repeat"]) for row in read] == [int, int]


def test_a_line_that_was_cut_off_is_taken_out(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    append_tidy(path, [ROW, {**ROW, "repeat": 1}])
    path.write_bytes(path.read_bytes()[:-20])
    assert load_tidy(path) == [ROW]
    append_tidy(path, [{**ROW, "repeat": 2}])
    assert load_tidy(path) == [ROW, {**ROW, "repeat": 2}]


def test_a_file_of_other_columns_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match="another folder"):
        append_tidy(path, [ROW])
    assert path.read_text() == "a,b\n1,2\n"


def test_whole_numbers_with_gaps_between_them_are_written_whole(tmp_path: Path) -> None:
    append_tidy(tmp_path / "runs.csv", [{"a": 1}, {"a": None}])
    assert (tmp_path / "runs.csv").read_text().split() == ["a", "1", '""']


def test_a_table_has_six_digits(tmp_path: Path) -> None:
    file = write_table(tmp_path / "table.csv", [{"a": 1 / 3, "b": "x"}, {"a": None, "b": "y"}])
    assert file.read_text() == "a,b\n0.333333,x\n,y\n"


def test_means_keep_the_order_of_rows_and_missing_values_of_keys() -> None:
    rows: list[TidyRow] = [{"m": "b", "e": None, "x": 1.0}, {"m": "a", "e": 2, "x": math.inf}]
    means = means_of([*rows, *rows], ("m", "e"), "x")
    assert list(means) == [("b", None), ("a", 2)]
    assert f"{means['b', None]:.1f}" == "1.0 ± 0.0"
    assert means["a", 2].mean == math.inf
    assert means["a", 2].half_or_none is None
    cell = cells_of([{**row, "y": None} for row in (*rows, *rows)], ("m", "e"), "x", "y")[0]
    assert cell == {"m": "b", "e": None, "runs": 2, "x": means["b", None], "y": None}


def test_mean_and_interval_are_those_of_students_t() -> None:
    (mean,) = summarise([{**ROW, "repeat": r, "nicv": v} for r, v in enumerate((1.0, 2.0, 3.0))])
    assert (mean["metric"], mean["runs"], mean["mean"]) == ("nicv", 3, 2.0)
    assert mean["sem"] == pytest.approx(1 / math.sqrt(3))
    # t of 2 degrees of freedom at 97.5 % is 4.3027
    assert mean["low"] == pytest.approx(2 - 4.3027 / math.sqrt(3), abs=1e-4)
    assert mean["high"] == pytest.approx(2 + 4.3027 / math.sqrt(3), abs=1e-4)


def test_one_run_has_a_mean_and_no_interval() -> None:
    mean = summarise([ROW])[0]
    assert [mean[name] for name in ("mean", "sem", "low", "high")] == [0.1, None, None, None]


def test_area_is_taken_over_epsilon_repeat_by_repeat() -> None:
    curve = [{**ROW, "epsilon": e, "nicv": v} for e, v in ((1.0, 2.0), (0.0, 4.0))]
    baseline = {**ROW, "method": "lloyd", "epsilon": math.inf}
    areas = [mean for mean in summarise([*curve, baseline]) if mean["metric"] == AREA]
    assert [(area["method"], area["epsilon"], area["mean"]) for area in areas] == [
        ("fastlloyd", None, 3.0)
    ]


def test_every_line_of_a_summary_carries_the_stamp(tmp_path: Path) -> None:
    file = write_table(tmp_path / "summary.csv", summarise([ROW]))
    assert all(text.endswith(STAMP) for text in file.read_text().splitlines()[1:])


def test_starts_are_counted_by_data_set() -> None:
    rows: list[TidyRow] = [
        {"dataset": name, "repeat": repeat, "epsilon": epsilon}
        for name, repeats in (("a", 3), ("b", 1), ("c", 3))
        for repeat in range(repeats)
        for epsilon in (0.1, 1.0)
    ]
    assert starts(rows) == "3 starts on a, c, 1 start on b"
    assert starts([{**r, "dataset": f"{r['dataset']}{n}"} for n in range(2) for r in rows]) == (
        "3 starts on each of 4 data sets, 1 start on b0, b1"
    )
