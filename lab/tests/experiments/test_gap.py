"""The gap table: what is averaged, with what error, and what the page says of it."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from cloister_lab.experiments.catalogue import EXPERIMENTS
from cloister_lab.experiments.gap import Comparison, Rounded, compare_runs, mean_closed
from cloister_lab.experiments.records import TidyRow, load_tidy
from cloister_lab.experiments.run import Settings


def comparison(
    fastlloyd: float, auto: float, optimum: float = 1.0, *, error: float = 0.1
) -> Comparison:
    return Comparison(
        setting="paper",
        dataset="iris",
        epsilon=0.5,
        runs=30,
        fastlloyd=fastlloyd,
        fastlloyd_error=error,
        auto=auto,
        auto_error=error / 2,
        optimum=optimum,
    )


def rows(**values: list[float]) -> list[TidyRow]:
    return [
        {
            "setting": "paper",
            "dataset": "wine",
            "epsilon": 0.1,
            "method": method,
            "nicv": value,
            "optimum": 1.0,
        }
        for method, of_method in values.items()
        for value in of_method
    ]


def test_the_gap_closed_is_one_at_the_optimum_and_negative_beyond_fastlloyd() -> None:
    assert comparison(3.0, 1.0).closed == 1.0
    assert comparison(3.0, 2.0).closed == 0.5
    assert comparison(3.0, 4.0).closed == -0.5


def test_a_cell_without_a_gap_has_none_and_is_left_out_of_means() -> None:
    nothing = comparison(1.019, 1.5)
    assert math.isnan(nothing.closed)
    assert mean_closed([nothing, comparison(3.0, 2.0)])[0] == 0.5
    assert math.isnan(mean_closed([nothing])[0])


def test_the_error_of_the_gap_closed_is_that_of_repeated_means() -> None:
    cell = comparison(3.0, 1.4)
    rng = np.random.default_rng(3)
    fast = rng.normal(cell.fastlloyd, cell.fastlloyd_error, 40_000)
    auto = rng.normal(cell.auto, cell.auto_error, 40_000)
    spread = float(np.std((fast - auto) / (fast - cell.optimum)))
    assert cell.closed_error == pytest.approx(spread, rel=0.05)
    assert mean_closed([cell] * 4)[1] == pytest.approx(cell.closed_error / 2)


def test_means_and_errors_are_of_the_runs() -> None:
    (cell,) = compare_runs(rows(fastlloyd=[2.0, 3.0, 4.0], auto=[1.0, 2.0]))
    assert (cell.fastlloyd, cell.auto, cell.runs) == (3.0, 1.5, 2)
    assert cell.fastlloyd_error == pytest.approx(1 / math.sqrt(3))
    assert cell.z == pytest.approx(1.5 / math.hypot(1 / math.sqrt(3), 0.5))


def test_a_cell_with_one_method_is_not_compared() -> None:
    assert compare_runs(rows(auto=[1.0, 2.0])) == []


def test_the_second_setting_knows_the_length_to_one_digit_and_takes_the_default_delta() -> None:
    data = Rounded("wdbc").dataset()
    assert (len(data.records), data.nominal_n) == (569, 600)
    assert data.delta == 1e-6


def test_the_command_knows_it_and_small_and_full_differ_by_their_tables() -> None:
    assert EXPERIMENTS["gap"] is EXPERIMENTS["gap"]
    small = EXPERIMENTS["gap"].units(Settings(out=Path()))
    full = EXPERIMENTS["gap"].units(Settings(out=Path(), full=True, repeats=1))
    assert len({unit.key for unit in small}) == len(small)
    assert not any("digits" in unit.key for unit in small)
    assert any("digits" in unit.key for unit in full)


def test_the_page_says_how_many_cells_are_won(tmp_path: Path) -> None:
    files = EXPERIMENTS["gap"].figures(
        rows(fastlloyd=[2.0, 2.1, 2.2], auto=[1.5, 1.6, 1.5]), tmp_path
    )
    page = (tmp_path / "gap.md").read_text()
    assert "smaller mean in 1 of 1 cells" in page
    assert "nan" not in page
    assert [file.name for file in files] == ["gap.md", "gap.csv", "gap.png"]
    (row,) = load_tidy(tmp_path / "gap.csv")
    assert row["held_out"] == 0
    assert row["gap_closed"] == pytest.approx((2.1 - 4.6 / 3) / 1.1, abs=1e-4)
