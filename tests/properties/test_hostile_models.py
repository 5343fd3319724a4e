"""Two late blocks keep their bounds, whatever the cells of a record and the state are.

They are the difference of both arms in `treatment-effect`, and the law of residuals in
`imputed-regression`. The search goes from cells to the vectors of all blocks of the last round. It
finds mutants that do not cut, and those whose vector of a record depends on the other records.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.app.job import make_plan
from cloister.core.arrays import GridState, Integers, Records
from cloister.data import read_source
from cloister.data.schema import Column, Schema
from cloister.hazmat.fixedpoint import round_to_grid
from cloister.privacy.budget import Budget
from cloister.protocol.plan import Plan
from cloister.protocol.summing import LocalStep
from cloister.protocol.task import Block, Task
from cloister.tasks.regression.effect import TreatmentEffect
from cloister.tasks.regression.engine import BITS
from cloister.tasks.regression.imputed import ImputedRegression
from cloister.testing import hostile_states

LATE = {TreatmentEffect: "naive", ImputedRegression: "normality"}
NUMBERS = ("nan", "inf", "-inf", "1e308", "-1e308", "5e-324", "-0.0", "", "x")
"""Cells that no honest table has in a column of numbers."""
RECORDS = 6
TRIES = 60  # seeds in which a mutant must be found


class UncutDifference(TreatmentEffect):
    """Does not cut the outcome in the difference of both arms."""

    rows = None  # the kernel alone, which nothing checks

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the sums, that of the difference of outcomes of any length."""
        known, aim = self._read(state)
        with np.errstate(all="ignore"):
            values = self._scores(known, aim, records)[0].values[-1] / aim.cuts[-2]
        return replaced(self, t, super().contribute(t, state, records), values)


class DifferenceFromOwnMean(TreatmentEffect):
    """Takes outcomes about the mean of the silo's records in place of the released centre."""

    rows = None  # as above

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the sums, with the difference about a mean that no one released."""
        known, aim = self._read(state)
        with np.errstate(all="ignore"):
            values = self._scores(known, aim, records)[0].values[-1] / aim.cuts[-2]
            values = np.clip(values - np.nan_to_num(values).sum() / max(len(values), 1), -1.0, 1.0)
        return replaced(self, t, super().contribute(t, state, records), values)


class ResidualsWithoutWaves(ImputedRegression):
    """Sums residuals themselves, in place of their sine."""

    rows = None  # as above

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the sums, that of residuals of any length."""
        with np.errstate(all="ignore"):
            values = self._imputers(state)[0].away(records)[1]
        return replaced(self, t, super().contribute(t, state, records), values)


def replaced(task: Task, t: int, total: Integers, values: Any) -> Integers:
    """Return sums of the last round with another first word of the late block."""
    if t == task.rounds - 1:
        first, _ = place_of(task)
        whole = np.trunc(np.clip(np.nan_to_num(values), -(2.0**40), 2.0**40) * (1 << BITS))
        total[first] = int(whole.sum())
    return total


def place_of(task: Task) -> tuple[int, Block]:
    """Return the place of the late block in the vector of the last round, and the block."""
    name = next(name for kind, name in LATE.items() if isinstance(task, kind))
    place = 0
    for block in task.blocks(task.rounds - 1):
        if block.name == name:
            return place, block
        place += block.size
    raise AssertionError(name)


@cache
def plan_of(task: type[Any], two: bool) -> tuple[Plan, Schema]:
    """Return a plan with a number as outcome, or with two categories or incomplete columns."""
    effect = issubclass(task, TreatmentEffect)
    last = Column(name="d", type="boolean") if two and effect else number("d")
    columns = (
        number("a", "drop" if effect else "keep"),
        number("b", "keep" if two and not effect else "drop"),
        Column(name="t", type="boolean"),
        last,
    )
    options = {"treatment": "t", "outcome": "d"} if effect else {"target": "d"}
    schema = Schema(dataset="wards", unit="row", columns=columns)
    about = {"budget": Budget(4.0, 1e-6), "nominal_n": 40_000, **options}
    return make_plan(task, schema, ("p",), **about), schema


def number(name: str, missing: str = "drop") -> Column:
    return Column(name=name, type="number", min=-3.0, max=7.0, missing=missing)


def hostile_cells(rng: np.random.Generator, schema: Schema) -> pd.DataFrame:
    """Return text: any numbers, ends of the box and their neighbours, and what is no number."""
    table = {}
    for column in schema.columns:
        if column.type == "boolean":
            table[column.name] = rng.choice(["0", "1"], RECORDS)
            continue
        ends = [repr(math.nextafter(end, way)) for end in (-3.0, 7.0) for way in (-9, end, 9)]
        cells = np.array([repr(v) for v in rng.uniform(-3, 7, RECORDS).tolist()], dtype=object)
        kind = rng.random(RECORDS)
        cells = np.where(kind < 0.5, rng.choice([*ends, "2.0"], RECORDS), cells)
        table[column.name] = np.where(kind < 0.1, rng.choice(NUMBERS, RECORDS), cells)
    return pd.DataFrame(table)


@cache
def states_of(task: Task) -> list[GridState]:
    """Return the first state, and those that follow from invented answers."""
    start = {name: round_to_grid(v, 16) for name, v in task.start().items()}
    return [start, *hostile_states(task)]


def hostile_state(rng: np.random.Generator, task: Task) -> GridState:
    """Return any integers of the shapes of a state: as an answer makes them, or none does."""
    ends = np.array([-(2**63), 2**63 - 1, -(2**62), 2**62, 0, 1, -1])
    found = states_of(task)
    state = found[rng.integers(len(found)) if rng.random() < 0.5 else 0]
    touched = rng.random() < 0.7
    made = {}
    for name, value in state.items():
        shape = np.shape(value)
        kinds = (
            value,
            rng.choice(ends, shape),
            rng.integers(-(2**63), 2**63 - 1, shape),
            rng.integers(-(1 << 18), 1 << 18, shape),
            np.where(rng.random(shape) < 0.3, rng.choice(ends, shape), value),
            rng.choice([-1, 0, 1], shape) << rng.integers(0, 62),
        )
        made[name] = np.asarray(kinds[rng.integers(len(kinds)) if touched else 0], dtype=np.int64)
    return made


def tried(task: type[Any], seed: int) -> float:
    """Check all neighbours of a table by a seed; return the largest part of the late bound."""
    rng = np.random.default_rng(seed)
    plan, schema = plan_of(task, bool(seed % 2))
    t = plan.rounds - 1
    step = LocalStep(plan.task, t, hostile_state(rng, plan.task), plan.length(t))
    cells = hostile_cells(rng, schema)
    # Each row is read by itself, too: what is read of a row must not depend on the others.
    whole = added(step, cells, schema)
    each = [added(step, cells[i : i + 1], schema) for i in range(RECORDS)]
    assert (whole == sum(each)).all(), "a record adds the same in any company"
    most = 0.0
    for i in range(RECORDS):
        rest = cells.drop(index=i)
        within(plan, whole - added(step, rest, schema), 1)
        other = pd.concat([rest, cells[i - 1 : i] if i else cells[-1:]])
        within(plan, whole - added(step, other, schema), 2)
        most = max(most, within(plan, each[i], 1))
    return most


def added(step: LocalStep, cells: pd.DataFrame, schema: Schema) -> Integers:
    """Return what a silo with these cells adds."""
    total = step.of(np.empty((0, len(schema.columns)), dtype=np.int32))
    for chunk in read_source(cells.reset_index(drop=True), schema):
        total = total + step.of(chunk)
    return total


def within(plan: Plan, change: Integers, records: int) -> float:
    """Check the change by so many records; return the part of the late block's L2 bound."""
    first, part = 0, 0.0
    for block in plan.blocks(plan.rounds - 1):
        values = change[first : first + block.size].tolist()  # Python's integers do not overflow
        first += block.size
        l1, l2_squared = sum(map(abs, values)), sum(v * v for v in values)
        assert l1 <= records * block.l1, block.name
        assert l2_squared <= records**2 * block.l2_squared, block.name
        if block.name in LATE.values():
            part = math.sqrt(l2_squared / block.l2_squared)
    return part


@pytest.mark.parametrize("task", LATE)
@given(seed=st.integers(0, 2**32 - 1))
def test_neighbours_differ_by_at_most_the_bound(task: type[Any], seed: int) -> None:
    """By a record more or less, and by another record in place of one: twice the bound."""
    tried(task, seed)


def most_of_any(task: type[Any]) -> float:
    """Return the largest part of the late bound, of seeds up to the first that uses most of it."""
    most = 0.0
    for seed in range(TRIES):
        most = max(most, tried(task, seed))
        if most > 0.9:
            break
    return most


@pytest.mark.parametrize(
    ("mutant", "message"),
    [
        (UncutDifference, "naive"),
        (ResidualsWithoutWaves, "normality"),
        (DifferenceFromOwnMean, "company"),
    ],
)
def test_the_search_finds_mutants(mutant: type[Any], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        most_of_any(mutant)


@pytest.mark.parametrize("task", LATE)
def test_the_search_comes_near_the_bound(task: type[Any]) -> None:
    """Else it would find no excess either: some record uses most of the bound."""
    assert most_of_any(task) > 0.9
