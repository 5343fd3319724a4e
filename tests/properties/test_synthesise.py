"""Look-alike records: what one record adds, frames, and a choice from public numbers alone."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cloister.app.in_process import InProcess, run_plan
from cloister.app.job import make_plan
from cloister.data.schema import schema_of
from cloister.privacy.budget import Budget
from cloister.protocol.plan import Plan
from cloister.tasks.synthesis.synthesise import Synthesise
from cloister.testing import (
    Faults,
    SimulatedNoise,
    Wire,
    ZeroNoise,
    hostile_states,
)

from .cases import DESIGNS, PEOPLE

D = len(PEOPLE)
structures = pytest.mark.parametrize("structure", ["pairs", "target", "star", "independent"])


def plan_of(structure: str, silos: int = 3, epsilon: float = 4.0) -> Plan:
    return make_plan(
        Synthesise,
        schema_of(PEOPLE),
        [f"silo-{i}" for i in range(silos)],
        budget=Budget(epsilon, 1e-6),
        nominal_n=3000,
        **DESIGNS[f"synthesise, {structure}"].options,
    )


def people(linked: tuple[int, ...], n: int = 3000, seed: int = 0) -> np.ndarray:
    """Records whose columns are independent but for some that say the same."""
    rng = np.random.default_rng(seed)
    values = rng.uniform(-1, 1, (n, D))
    values[:, linked] = values[:, linked[:1]]
    return np.rint(values * (1 << 16)).astype(np.int32)


# What a record adds -------------------------------------------------------------------------------


@given(
    records=arrays(
        np.int32, st.tuples(st.integers(1, 5), st.just(3)), elements=st.integers(-16, 16)
    )
)
def test_bins_in_any_state_give_a_record_for_a_record(records: np.ndarray) -> None:
    task = DESIGNS["discretise"].build(4)
    one = 1 << 4
    for state in hostile_states(task):
        results = task.results(state, task.used_box)
        assert (np.diff(results["edges"], axis=1) >= 0).all()
        changed = task.transform(results, records)
        assert changed.shape == records.shape
        assert np.abs(changed).max() <= one
        assert (changed[:, 2] == records[:, 2]).all()


# Frames and choice --------------------------------------------------------------------------------


def frames_of(plan: Plan, records: np.ndarray, seed: int) -> tuple[list[Any], np.ndarray]:
    """Return the lengths of all frames of a job, and the tables that it chose."""
    carriers: list[Faults] = []

    def carried(handlers: Any) -> Faults:
        carriers.append(Faults(InProcess(handlers)))
        return carriers[-1]

    split = dict(zip(plan.silos, np.split(records, [900, 1700]), strict=True))
    state = Wire(plan, split, SimulatedNoise(seed), carried).run()[0]
    lengths = [(number, silo, len(a), len(b)) for number, silo, a, b in carriers[0].frames]
    return lengths, state["chosen"] >> 16


@pytest.mark.parametrize("structure", ["pairs", "target"])
def test_frames_are_as_long_whatever_is_chosen(structure: str) -> None:
    plan = plan_of(structure)
    lengths, chosen = frames_of(plan, people((1, 2, 3)), 0)
    others, other = frames_of(plan, people((0, 3)), 1)
    assert lengths == others
    assert (chosen != other).any()


@pytest.mark.parametrize("structure", ["pairs", "target"])
def test_the_choice_follows_from_what_was_released(structure: str) -> None:
    """Not from who holds which records: the same sums in other silos choose the same tables."""
    records, plan = people((1, 2, 3)), plan_of(structure)
    found = []
    for order in (slice(None), slice(None, None, -1)):
        parts = np.split(records[order], [7, 2900])
        held = {silo: [part] for silo, part in zip(plan.silos, parts, strict=True)}
        found.append(run_plan(plan, held, noise=ZeroNoise()).results)
    assert found[0].keys() == found[1].keys()
    for name, value in found[0].items():
        assert (value == found[1][name]).all(), name


def test_what_depends_is_chosen_and_what_does_not_is_measured_alone() -> None:
    records, plan = people((1, 2, 4), 30_000), plan_of("pairs", 1)
    result = run_plan(plan, {plan.silos[0]: [records]}, noise=SimulatedNoise(3)).results
    chosen = {tuple(int(j) for j in row if j >= 0) for row in result["chosen"]} - {()}
    task = plan.task
    assert isinstance(task, Synthesise)
    assert (task.draw(result) != task.draw(result, seed=1)).any()
    among = set(combinations((1, 2, 4), 2))
    assert len(chosen & among) >= 2
    nothing = run_plan(plan, {plan.silos[0]: [records[:0]]}, noise=ZeroNoise()).results
    assert {tuple(int(j) for j in row if j >= 0) for row in nothing["chosen"]} == {
        (), *((j,) for j in range(D))
    }  # fmt: skip
    for value in nothing.values():
        assert np.isfinite(value).all()


@structures
@pytest.mark.parametrize("seed", range(3))
def test_noise_alone_gives_finite_answers_and_records_of_the_schema(
    structure: str, seed: int
) -> None:
    plan = plan_of(structure, 1, epsilon=0.05)
    corner = np.full((2, D), 1 << 16, dtype=np.int32)
    result = run_plan(plan, {plan.silos[0]: [corner]}, noise=SimulatedNoise(seed)).results
    assert all(np.isfinite(value).all() for value in result.values())
    task = plan.task
    assert isinstance(task, Synthesise)
    drawn = task.draw(result)
    assert drawn.shape == (3000, D)
    assert (drawn >= 0).all()
    assert (drawn < task.levels).all()
    assert (drawn == task.draw(result)).all()
