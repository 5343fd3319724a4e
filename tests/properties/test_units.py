"""What every task must obey: the unit in which a column is measured changes nothing but the unit.

Records come on the grid and the state is rounded to it. A number in data units in the state would
lose its digits, or vanish, where a unit is large.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from cloister import Budget, Schema, make_plan
from cloister.app.in_process import run_plan
from cloister.data.schema import Column
from cloister.protocol.task import Floats, PublicColumn
from cloister.tasks import installed
from cloister.tasks.examples import example_of
from cloister.testing import SimulatedNoise

TASKS = installed()  # the laboratory's, too

ROWS = 500
UNITS_MATTER = {"evaluation"}  # scores with the bounds 0 and 1 are probabilities


def column(public: PublicColumn, unit: float) -> Column:
    if not public.levels:
        low, high = public.low * unit, public.high * unit
        step = public.step * unit or None
        missing = "keep" if public.incomplete else "drop"
        return Column(
            name=public.name, type="number", min=low, max=high, step=step, missing=missing
        )
    if public.is_boolean:
        return Column(name=public.name, type="boolean")
    return Column(name=public.name, type="category", categories=public.categories)


@cache
def released(word: str, unit: float) -> dict[str, Floats]:
    """Return the results of the same noisy sums where columns of numbers have another unit."""
    task, example = TASKS[word], example_of(TASKS[word])
    options = dict(example.options)
    if "centres" in options:
        options["centres"] = (np.array(options["centres"]) * unit).tolist()
    if "edges" in options:
        options["edges"] = {k: tuple(unit * e for e in v) for k, v in options["edges"].items()}
    if "cutoff" in options:
        options["cutoff"] *= unit
    columns = tuple(column(public, unit) for public in example.columns)
    plan = make_plan(
        task,
        Schema(dataset="toy", unit="row", columns=columns),
        ["a"],
        budget=Budget(5.0, 1e-6) if task.private else None,
        nominal_n=ROWS,
        **options,
    )
    rng = np.random.default_rng(0)
    centres = rng.uniform(-0.7, 0.7, (3, len(columns)))
    places = centres[rng.integers(0, 3, ROWS)] + rng.normal(0, 0.15, (ROWS, len(columns)))
    records = np.rint(np.clip(places, -1, 1) * plan.grid.one).astype(np.int32)
    result = run_plan(plan, {"a": [records]}, noise=SimulatedNoise(1))
    return dict(result.results)


@pytest.mark.parametrize("unit", [2.0**-20, 2.0**20])
@pytest.mark.parametrize("word", sorted(TASKS.keys() - UNITS_MATTER))
def test_a_unit_of_the_data_scales_results_or_leaves_them(word: str, unit: float) -> None:
    plain, other = released(word, 1.0), released(word, unit)
    assert plain.keys() == other.keys()
    for name, value in plain.items():
        powers = [value * unit**power for power in (-2, -1, 0, 1, 2)]
        fits = [np.isclose(other[name], each, rtol=1e-9, atol=0, equal_nan=True) for each in powers]
        assert np.any(fits, axis=0).all(), name
