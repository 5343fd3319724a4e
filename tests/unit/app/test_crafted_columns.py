"""Rows are linear in sums of crafted columns: without noise they follow, under a cap they do not.

The noise has a fixed seed, so no test can fail by chance.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.linalg import hadamard

from cloister import Budget, Ledger, make_plan
from cloister.app.in_process import run_plan
from cloister.app.payment import Account
from cloister.core.arrays import Floats
from cloister.core.errors import BudgetExceeded
from cloister.hazmat.fixedpoint import from_grid
from cloister.hazmat.ring import to_integers
from cloister.privacy.calibration import gdp_part
from cloister.privacy.noise import NoiseSource
from cloister.protocol.task import COUNT_BITS
from cloister.tasks.preparation.statistics import Statistics
from cloister.testing import SimulatedNoise, ZeroNoise, toy_schema

CAP = Budget(1.0, 1e-6)
ROWS = 16
SCHEMA = toy_schema(2)
VALUES = np.random.default_rng(0).uniform(-1, 1, (ROWS, 2))
SIGNS = hadamard(ROWS).astype(np.int32)  # orthogonal, so that the answers have one solution


def ask(noise: NoiseSource, questions: int) -> Floats:
    """Return the rows that follow from sums of both columns times known signs."""
    budget = gdp_part(CAP, 1 / ROWS)
    plan = make_plan(Statistics, SCHEMA, ["a"], budget=budget, nominal_n=ROWS)
    ledger = Ledger(None)
    ledger.open_dataset("toy", cap=CAP)
    records = SCHEMA.grid().encode(VALUES)
    sums = []
    for number in range(questions):
        crafted = records * SIGNS[:, number % ROWS, None]
        job = replace(plan, run_id=f"{number:032x}")
        release = run_plan(job, {"a": [crafted]}, noise=noise, account=Account(ledger, "toy"))
        sums.append(from_grid(to_integers(release.sums[0].words), COUNT_BITS)[1:3])
    return np.asarray(SIGNS @ np.array(sums) / ROWS)


def test_exact_sums_of_crafted_columns_give_every_row_away() -> None:
    assert np.abs(ask(ZeroNoise(), ROWS) - VALUES).max() < 1e-3


def test_a_cap_leaves_errors_larger_than_the_range_of_a_column() -> None:
    errors = ask(SimulatedNoise(0), ROWS) - VALUES
    assert np.sqrt((errors**2).mean()) > np.ptp(VALUES)


def test_the_question_after_the_last_that_the_cap_pays_is_refused() -> None:
    with pytest.raises(BudgetExceeded, match="above its lifetime cap"):
        ask(SimulatedNoise(0), ROWS + 1)
