"""Records at which a sum may jump are found from plan and state alone."""

from __future__ import annotations

import numpy as np
import pytest

from cloister.app.job import make_plan
from cloister.audit.edges import hard_records, jumps, special, ties
from cloister.audit.runs import search
from cloister.core.randomness import public_generator
from cloister.data.schema import schema_of
from cloister.hazmat.fixedpoint import round_to_grid
from cloister.protocol.plan import Plan
from cloister.protocol.task import GridState
from cloister.tasks.clustering.kmeans import FastLloyd
from cloister.tasks.examples import numbers
from cloister_lab.audit.mutants import CLAIM, EdgeTwice, FixedNoise, TieTwice, plan_of

ONE = 1 << 16


def first_state(plan: Plan) -> GridState:
    return {name: round_to_grid(v, 16) for name, v in plan.task.start().items()}


@pytest.mark.parametrize("d", [1, 2, 3, 5])
def test_ties_are_exactly_as_far_from_both_points(d: int) -> None:
    rng, found = public_generator("ties", d), 0
    for _ in range(200):
        left, right = rng.integers(-ONE // 2, ONE // 2, (2, d))
        for tie in ties(left, right, ONE):
            assert ((tie - left) ** 2).sum() == ((tie - right) ** 2).sum()
            found += 1
    assert found >= 50


def test_a_jump_is_found_to_the_step() -> None:
    def adds(record: np.ndarray) -> np.ndarray:
        return np.array([1, 0]) if record[0] <= 12_345 else np.array([0, 1])

    ((inside, outside),) = jumps(adds, np.array([-ONE, 7]), np.array([ONE, 7]))
    assert inside.tolist() == [12_345, 7]
    assert outside.tolist() == [12_346, 7]


def test_corners_bounds_and_a_step_inside_are_tried() -> None:
    tried = {tuple(row) for row in special(plan_of(FastLloyd), public_generator("special"))}
    assert {(ONE, ONE), (-ONE, ONE), (ONE, ONE - 1), (1 - ONE, -ONE), (0, 0)} <= tried


def test_records_exactly_on_the_radius_are_tried() -> None:
    """Of the squared distances of whole numbers the largest one inside is met, not one near it."""
    plan = plan_of(FastLloyd, alpha=0.4)
    state, t = first_state(plan), 1
    squared = plan.task.payload(t).radius_squared  # type: ignore[attr-defined]
    best = 0
    for number in range(6):
        records = hard_records(plan, t, state, public_generator("edge", number))
        apart = records[:, None].astype(np.int64) - state["centres"]
        nearest = (apart**2).sum(axis=2).min(axis=1)
        best = max(best, int(nearest[nearest <= squared].max()))
    assert best == squared


@pytest.mark.parametrize("mutant", [TieTwice, EdgeTwice])
@pytest.mark.parametrize("k", [2, 5])
def test_defects_of_measure_zero_are_found(mutant: type[FastLloyd], k: int) -> None:
    plan = make_plan(
        mutant,
        schema_of(numbers(2)),
        ["silo"],
        budget=CLAIM,
        nominal_n=100,
        n_clusters=k,
        rounds=2,
    )
    found = search(plan, "groups", FixedNoise("walls"))
    assert found.excess > 1
    honest = search(plan_of(FastLloyd, rounds=2), "groups", FixedNoise("walls"))
    assert honest.excess <= 1
    assert honest.adds_up
