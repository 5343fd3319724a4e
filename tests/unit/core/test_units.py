"""Population intervals and p-values where one unit of privacy has several records."""

from __future__ import annotations

import numpy as np
import pytest

from cloister.app.job import make_plan
from cloister.app.present import present
from cloister.app.release import Release
from cloister.core.arrays import Ranges
from cloister.core.units import for_units
from cloister.data.schema import Schema
from cloister.privacy.budget import Budget
from cloister.tasks import TASKS, installed
from cloister.testing import rerun

RESULTS = {
    "mean": np.array([5.0]),
    "mean_low": np.array([4.0]),
    "mean_high": np.array([6.0]),
    "mean_population_low": np.array([5 - np.sqrt(2)]),
    "mean_population_high": np.array([5 + np.sqrt(2)]),
    "log_rank_p": np.array([0.01]),
}


def test_one_record_for_each_unit_changes_nothing() -> None:
    assert for_units(RESULTS, 1, {}) is RESULTS


def test_sampling_errors_grow_with_the_root_of_the_records_and_noise_does_not() -> None:
    found = for_units(RESULTS, 9, {})
    assert found["mean_population_low"][0] == pytest.approx(5 - np.hypot(1, 3))
    assert found["mean_population_high"][0] == pytest.approx(5 + np.hypot(1, 3))
    assert found["mean_high"][0] == 6.0
    assert np.isnan(found["log_rank_p"]).all()


def test_ratios_are_widened_on_the_scale_of_their_logarithm() -> None:
    exact = {f"odds_ratio{end}": np.array([2.0]) for end in ("", "_low", "_high")}
    ends = {"odds_ratio_population_low": np.array([1.0])}
    ends |= {"odds_ratio_population_high": np.array([4.0])}
    found = for_units({**exact, **ends}, 4, {})
    assert found["odds_ratio_population_low"][0] == pytest.approx(0.5)
    assert found["odds_ratio_population_high"][0] == pytest.approx(8.0)


def test_ends_that_are_not_bounded_stay_so() -> None:
    wide = {**RESULTS, "mean_population_high": np.array([np.inf]), "mean_high": np.array([np.inf])}
    found = for_units(wide, 4, {})
    assert found["mean_population_high"][0] == np.inf
    assert np.isfinite(found["mean_population_low"]).all()


@pytest.mark.parametrize(
    ("task", "name", "least", "most"),
    [
        *(("tabulate", "table_1.shares", 0, 1), ("scorecard", "column_2.rate", 0, 1)),
        *(("naive-bayes", "class_prior", 0, 1), ("survival", "rate", 0, np.inf)),
        *(("tabulate", "group_counts", 0, np.inf), ("scorecard", "column_1.gini", -1, 1)),
        *(("regression-evaluation", "r2", -np.inf, 1), ("statistics", "mean", -np.inf, np.inf)),
        *(("scorecard", "selection_difference", -1, 1), ("evaluation", "macro_auc", 0, 1)),
    ],
)
def test_ends_are_possible_values(task: str, name: str, least: float, most: float) -> None:
    ends = {"": 0.5, "_low": 0.4, "_high": 0.6, "_population_low": -1.0, "_population_high": 2.0}
    results = {f"{name}{end}": np.array([value]) for end, value in ends.items()}
    ranges: Ranges = TASKS[task].ranges  # type: ignore[attr-defined]  # of these tasks
    found = for_units(results, 9, ranges)
    low, high = (found[f"{name}_population_{end}"][0] for end in ("low", "high"))
    assert low == (least if np.isfinite(least) else pytest.approx(-4.0, abs=0.1))
    assert high == (most if np.isfinite(most) else pytest.approx(5.0, abs=0.1))


def test_intervals_hold_the_population_though_all_records_of_a_person_are_alike() -> None:
    schema = Schema(
        dataset="visits",
        unit="person_id",
        max_rows=8,
        columns=[
            {"name": "pressure", "type": "number", "min": 0, "max": 100},
            {"name": "ward", "type": "category", "categories": ["a", "b", "c"]},
        ],
    )
    persons, shares = 600, np.array([0.5, 0.3, 0.2])
    plan = make_plan(
        installed()["describe"],
        schema,
        ["here"],
        budget=Budget(2.0, 1e-7),
        nominal_n=8 * persons,
    )
    rng, held = np.random.default_rng(0), []  # seeded, so that the test cannot fail by chance
    for _ in range(60):
        rows = np.repeat(
            np.column_stack(
                [rng.normal(50, 10, persons).clip(0, 100), rng.choice(3, persons, p=shares)]
            ),
            8,
            axis=0,
        )
        found = rerun(plan, plan.grid.encode(rows), rng)
        for name, truth in (("mean", 50.0), ("shares", shares)):
            low, high = (found[f"{name}_population_{end}"] for end in ("low", "high"))
            size = np.size(truth)
            held.append(np.mean((low[:size] <= truth) & (truth <= high[:size])))
    assert np.mean(held) >= 0.92  # without the root of 8 it is below 0.6
    said = present(Release(plan, found, (), plan.events(), "simulated", ())).remarks
    assert any("one person may have 8 records" in remark for remark in said)
