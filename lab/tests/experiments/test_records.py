from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from cloister.errors import DataError
from cloister_lab.experiments.records import (
    AREA,
    METRICS,
    STAMP,
    Row,
    append_rows,
    load_rows,
    summarise,
    write_means,
)

ROW = Row(
    dataset="t",
    method="fastlloyd",
    epsilon=0.5,
    delta=1e-6,
    repeat=0,
    silos=2,
    nicv=0.1,
    cost_gap=math.inf,
    n_clusters=3,
    n_features=2,
    nominal_n=100,
    rounds=2,
    convention="public",
    noise="operating system",
    schema_digest="ab",
    plan_digest="cd",
    version="0",
    commit="",
    machine="none",
)


def test_rows_read_back_equal(tmp_path: Path) -> None:
    rows = [ROW, replace(ROW, repeat=1, nicv=1 / 3, epsilon=math.inf)]
    append_rows(tmp_path / "runs.csv", rows[:1])
    append_rows(tmp_path / "runs.csv", rows[1:])
    assert load_rows(tmp_path / "runs.csv") == rows


def test_a_line_that_was_cut_off_is_taken_out(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    append_rows(path, [ROW, replace(ROW, repeat=1)])
    path.write_bytes(path.read_bytes()[:-20])
    assert load_rows(path) == [ROW]
    append_rows(path, [replace(ROW, repeat=2)])
    assert load_rows(path) == [ROW, replace(ROW, repeat=2)]


@pytest.mark.parametrize("text", ["a,b\n1,2\n", None])
def test_a_file_of_other_columns_or_values_is_refused(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "runs.csv"
    append_rows(path, [ROW])
    path.write_text(text or path.read_text().replace("0.5", "half"))
    with pytest.raises(DataError, match="another folder"):
        load_rows(path)


def test_mean_and_interval_are_those_of_students_t() -> None:
    rows = [replace(ROW, repeat=r, nicv=v, cost_gap=None) for r, v in enumerate((1.0, 2.0, 3.0))]
    (mean,) = summarise(rows)
    assert (mean.metric, mean.runs, mean.mean) == ("nicv", 3, 2.0)
    assert mean.sem == pytest.approx(1 / math.sqrt(3))
    # t of 2 degrees of freedom at 97.5 % is 4.3027
    assert mean.low == pytest.approx(2 - 4.3027 / math.sqrt(3), abs=1e-4)
    assert mean.high == pytest.approx(2 + 4.3027 / math.sqrt(3), abs=1e-4)


def test_one_run_has_a_mean_and_no_interval() -> None:
    mean = summarise([ROW])[0]
    assert (mean.mean, mean.sem, mean.low, mean.high) == (0.1, None, None, None)


def test_area_is_taken_over_epsilon_repeat_by_repeat() -> None:
    curve = [replace(ROW, epsilon=e, nicv=v, cost_gap=None) for e, v in ((1.0, 2.0), (0.0, 4.0))]
    baseline = replace(ROW, method="lloyd", epsilon=math.inf, cost_gap=None)
    areas = [mean for mean in summarise([*curve, baseline]) if mean.metric == AREA]
    assert [(area.method, area.epsilon, area.mean) for area in areas] == [("fastlloyd", None, 3.0)]


def test_every_metric_is_a_column_and_every_line_carries_the_stamp(tmp_path: Path) -> None:
    append_rows(tmp_path / "runs.csv", [ROW])
    write_means(tmp_path / "summary.csv", summarise([ROW]))
    heading, line = (tmp_path / "runs.csv").read_text().splitlines()
    assert set(METRICS) <= set(heading.split(","))
    assert line.endswith(STAMP)
    assert all(
        text.endswith(STAMP) for text in (tmp_path / "summary.csv").read_text().splitlines()[1:]
    )
