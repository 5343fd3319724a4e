"""Scores of outliers: standardised columns, cells of a projection, and the cutoff."""

from __future__ import annotations

import numpy as np
import pytest

from cloister import Budget, Schema, make_plan
from cloister.tasks.patterns.outliers import _RARITIES, Outliers, _definite

ONE = 1 << 16
FAR = 12.0


def density_of(columns: int) -> Outliers:
    """Return a task for columns in [-12, 12]."""
    ranges = [{"name": f"x{j}", "type": "number", "min": -FAR, "max": FAR} for j in range(columns)]
    schema = Schema(dataset="wards", unit="row", columns=ranges)
    facts = {"budget": Budget(2.0, 1e-6), "nominal_n": 4000}
    task = make_plan(Outliers, schema, ["one"], **facts, method="density").task
    assert isinstance(task, Outliers)
    return task


def test_values_are_in_deviations_up_to_both_ends_of_the_box() -> None:
    results = {"location": np.array([0.0, 2.0]), "spread": np.array([1.0, 0.5])}
    steps = np.array([[-ONE, -ONE], [ONE, ONE], [-3 * ONE, 3 * ONE]], dtype=np.int32)
    away = density_of(2)._standardised(results, steps)
    np.testing.assert_allclose(away, [[-12.0, -28.0], [12.0, 20.0], [-12.0, 20.0]])


def test_each_corner_of_a_projection_has_its_own_cell() -> None:
    """The last axis varies fastest."""
    task = density_of(2)
    results = {"location": np.zeros(2), "spread": np.ones(2)}
    corners = np.array([[-ONE, -ONE], [-ONE, ONE], [ONE, -ONE], [ONE, ONE]], dtype=np.int32)
    last = task.n_cells - 1
    cells = task._cells_of(results, corners)[:, 0]
    assert cells.tolist() == [0, last, task.n_cells * last, task.n_cells * last + last]


@pytest.mark.parametrize("rare", [0, 500, 1000])
def test_the_cutoff_leaves_the_rarest_records_beyond_it(rare: int) -> None:
    """However far scores spread, cells of noise alone are flagged."""
    task = density_of(1)
    counts = np.zeros(_RARITIES)
    counts[0], counts[-1] = 1000 - rare, rare
    tables = {"cells": np.full((1, task.n_cells), 100.0), "rarities": counts, "noise": np.zeros(2)}
    density = task._density(tables)
    low, width = task._rarity_bins(density)
    assert low < density["cutoff"][0] <= low + width * (_RARITIES - 1)


def test_a_direction_without_spread_or_noise_has_a_variance_of_2_to_the_minus_32() -> None:
    covariance = np.diag([4.0, 0.0])
    usual = dict.fromkeys(("covariance", "covariance_low", "covariance_high"), covariance)
    found = _definite(usual, np.array([2.0, 1.0]))
    np.testing.assert_allclose(found, np.diag([4.0, 2.0**-32]), rtol=1e-6)
