"""Reconstruction: exact statistics give every row away, and releases end with their cap.

Noise is simulated from fixed seeds, so no test can fail by chance.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cloister.core.errors import DataError
from cloister.privacy import accounting
from cloister.privacy.calibration import gdp_part
from cloister.privacy.events import RepeatedEvent
from cloister.testing import SimulatedNoise, ZeroNoise
from cloister_lab.experiments import reconstruction
from cloister_lab.experiments.catalogue import EXPERIMENTS
from cloister_lab.experiments.reconstruction import (
    LEAST_ROWS,
    MODEST,
    ExactStatistics,
    ask_until_refused,
    best_guess,
    bound_of_any,
    drawn,
    figures,
    found_of,
    from_exact,
    from_releases,
    known_law,
    units,
    verdict,
)
from cloister_lab.experiments.records import TidyRow
from cloister_lab.experiments.run import Settings


@pytest.mark.parametrize("columns", [1, 5])
def test_exact_means_and_covariances_give_every_cell_away(columns: int) -> None:
    (row,) = from_exact(64, columns, 0)
    assert row["exactly"] == 1.0


def test_the_guards_refuse_few_rows_and_columns_about_few() -> None:
    server = ExactStatistics(drawn(64, 2, 0).values)
    everybody = np.ones(64)
    few = np.zeros(64)
    few[: LEAST_ROWS - 1] = 1.0
    assert len(server.ask(everybody, range(LEAST_ROWS)).means) == 2
    for made, rows in [(everybody, range(LEAST_ROWS - 1)), (few, None)]:
        with pytest.raises(DataError, match="10 or more rows"):
            server.ask(made, rows)


def test_as_many_questions_as_rows_use_the_cap_up_and_the_next_is_refused() -> None:
    attacked = drawn(16, 1, 0, 1.0)
    answers, _ = ask_until_refused(attacked, SimulatedNoise(0))
    assert len(answers) == 16
    plan = reconstruction._plan(1, gdp_part(attacked.cap, 1 / 16), 16, covariance=False)
    whole = accounting.epsilon(RepeatedEvent(plan.events(), 16), attacked.cap.delta)
    assert 0.999 < whole <= 1.0


def test_without_noise_the_attack_on_releases_rebuilds_every_row() -> None:
    attacked = drawn(16, 5, 0, 1.0)
    answers, _ = ask_until_refused(attacked, ZeroNoise())
    found = best_guess(known_law(5), answers, 0.0)
    assert np.abs(found - attacked.values).max() < 1e-3  # sums are rounded to the grid


def test_with_much_noise_the_attack_is_the_guess_from_the_law() -> None:
    law = known_law(5)
    answers = [np.full(5, 3.0)] * 16
    assert np.allclose(best_guess(law, answers, 1e9), law.mean)


def test_no_attack_beats_a_guess_by_more_than_the_budget_allows() -> None:
    assert bound_of_any(0.2, 0.01, 100) == pytest.approx(0.2, abs=0.01)
    assert 0.2 < bound_of_any(0.2, 1.0, 100) < bound_of_any(0.2, 10.0, 100) < 1
    assert bound_of_any(1.0, 1.0, 100) == 1.0


def test_the_page_compares_with_the_guess(tmp_path: Path) -> None:
    assert EXPERIMENTS["reconstruction"].units is units
    rows: list[TidyRow] = [
        row
        for repeat in range(2)
        for row in [*from_exact(16, 1, repeat), *from_releases(1.0, 16, 1, repeat)]
    ]
    files = figures(rows, tmp_path)
    assert [file.suffix for file in files] == [".md", ".csv", ".png"]
    page = files[0].read_text()
    assert "| 1 | 16 | exact statistics | 16 | 1.000 |" in page
    assert "in 0 of 2 cells" in page
    assert "nan" not in page
    assert "{" not in page


def test_the_full_version_has_more_sizes_and_budgets() -> None:
    small, full = (units(Settings(Path(), full=full)) for full in (False, True))
    assert 0 < len(small) < len({unit.key for unit in full}) == len(full)
    assert not units(Settings(Path(), only=("iris",)))


def test_a_modest_budget_leaves_a_guess_and_a_large_one_does_not() -> None:
    found = {
        epsilon: found_of([row for i in range(20) for row in from_releases(epsilon, 64, 1, i)])
        for epsilon in (MODEST, 100.0)
    }
    assert "in 0 of 2 cells" in verdict(found[MODEST])
    for cell in (*found[MODEST], *found[100.0]):
        assert cell.exactly.mean == 0
        assert cell.near["attack"].mean <= cell.bound
    assert all(cell.better(0.05) for cell in found[100.0])
