"""The forecast of the error of coefficients, by the made table and by tables of other kinds."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
import pytest

from cloister.core.arrays import Floats, Records
from cloister.core.randomness import public_generator
from cloister.privacy.budget import Budget
from cloister.privacy.calibration import gaussian_noise_multiplier
from cloister.protocol.task import PublicColumn, PublicFacts
from cloister.tasks.regression.expected import forecast_of, half_widths, made_table
from cloister.tasks.regression.glm import GeneralizedLinear
from cloister.tasks.regression.parse import parse_formula

EPSILON, N = 1.0, 20_000


def noise_of(task: GeneralizedLinear, epsilon: float = EPSILON) -> float:
    block = task.blocks(task.rounds - 1)[0]
    return gaussian_noise_multiplier(epsilon, 1e-6) * sqrt(block.l2_squared / block.weight)


def task_of(*columns: PublicColumn, silos: tuple[str, ...] = (), **options: Any) -> Any:
    facts = PublicFacts(
        n_features=len(columns),
        nominal_n=N,
        budget=Budget(EPSILON, 1e-6),
        columns=columns,
        silos=silos,
    )
    return GeneralizedLinear.design(facts, GeneralizedLinear.Options(target="y", **options))


NUMBERS = tuple(PublicColumn(f"x{j}", 0.0, 10.0) for j in range(3))
LINE, SICK = PublicColumn("y", -1.0, 1.0), PublicColumn("y", 0.0, 1.0, ("0", "1"))


def made_by(draw: Any, task: GeneralizedLinear) -> Records:
    """Return records of a kind with effects, about as long as the columns of the task."""
    rng = public_generator("another table")
    columns = draw(rng, 4000)
    margin = (columns - columns.mean(axis=0)) @ [0.3, -0.2, 0.25]
    margin /= margin.std()
    if task.family == "gaussian":
        target = 0.1 * (0.4 * margin + rng.standard_normal(4000))
    else:
        target = np.where(rng.random(4000) < 1 / (1 + np.exp(-margin / 2)), 1, -1)
    scaled = np.clip(np.column_stack([columns, target]), -1, 1)
    return np.asarray(np.rint(scaled * (1 << task.frac_bits)), dtype=np.int32)


@pytest.mark.parametrize("target", [LINE, SICK])
@pytest.mark.parametrize(
    "draw",
    [
        lambda rng, n: 0.25 * rng.standard_normal((n, 3)),
        lambda rng, n: 0.02 * rng.standard_normal((n, 3)) + 0.4,
        lambda rng, n: 0.1 * rng.exponential(size=(n, 3)) - 1,
        lambda rng, n: 0.1 * rng.standard_t(4, (n, 3)),
    ],
    ids=["normal", "narrow", "skewed", "long tails"],
)
def test_tables_of_other_kinds_are_within_a_factor_of_two(target: PublicColumn, draw: Any) -> None:
    family = "gaussian" if target is LINE else "binomial"
    task = task_of(*NUMBERS, target, family=family)
    expected = np.median(next(iter(forecast_of(task, noise_of(task), N).values())))
    realised = np.median(half_widths(task, made_by(draw, task), noise_of(task), N))
    assert 0.5 < expected / realised < 2


def test_correlated_columns_have_the_larger_error_that_the_note_states() -> None:
    def alike(rng: np.random.Generator, n: int) -> Floats:
        common = rng.standard_normal((n, 1))
        return 0.2 * (0.9 * common + sqrt(0.19) * rng.standard_normal((n, 3)))

    task = task_of(*NUMBERS, LINE)
    widths = half_widths(task, made_by(alike, task), noise_of(task), N)
    assert (
        widths.min()
        > 2 * forecast_of(task, noise_of(task), N)["standardised_coefficient_half_width"].max()
    )


def test_the_forecast_is_free_of_units() -> None:
    wide = tuple(PublicColumn(f"x{j}", 0.0, 1e6) for j in range(3))
    found = [
        forecast_of(task, noise_of(task), N)
        for task in (task_of(*NUMBERS, LINE), task_of(*wide, PublicColumn("y", -9.0, 9.0)))
    ]
    for values, others in zip(*(one.values() for one in found), strict=True):
        assert values == pytest.approx(others, rel=1e-6)


def test_rare_events_and_little_epsilon_have_larger_errors() -> None:
    task = task_of(*NUMBERS, SICK, family="binomial")
    half, tenth = forecast_of(task, noise_of(task), N).values()
    assert np.all(half < tenth)
    assert np.all(half < next(iter(forecast_of(task, noise_of(task, 0.5), N).values())))


def test_terms_of_silos_and_categories_have_forecasts() -> None:
    columns = (NUMBERS[0], PublicColumn("work", 0.0, 2.0, ("a", "b", "c")), LINE)
    formula = parse_formula("y ~ x0 + work + site").to_dict()
    task = task_of(*columns, silos=("north", "south"), formula=formula)
    (found,) = forecast_of(task, noise_of(task), N).values()
    assert found.shape == (4,)
    assert np.all(np.isfinite(found))


@pytest.mark.parametrize("options", [{"family": "poisson"}, {"weights": "x2"}])
def test_other_models_have_none(options: dict[str, Any]) -> None:
    counts = PublicColumn("y", 0.0, 9.0)
    task = task_of(*NUMBERS, counts, **options)
    assert not forecast_of(task, noise_of(task), N)


def test_a_column_that_noise_would_hide_is_without_a_bound() -> None:
    many = PublicColumn("place", 0.0, 19.0, tuple(map(str, range(20))))
    task = task_of(NUMBERS[0], many, SICK, family="binomial")
    half, _ = forecast_of(task, 40 * noise_of(task), N).values()
    assert np.isinf(half).any()


def test_the_made_table_is_public_and_on_the_grid() -> None:
    task = task_of(*NUMBERS, SICK, family="binomial")
    first, again = made_table(task, 0.1), made_table(task, 0.1)
    assert np.array_equal(first, again)
    assert np.abs(first).max() <= 1 << task.frac_bits
    assert np.mean(first[:, -1] > 0) == pytest.approx(0.1, abs=0.03)
