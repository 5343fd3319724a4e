"""Contrasts of coefficients: their values and intervals are those worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from cloister.core.errors import PlanError
from cloister.protocol.task import PublicColumn
from cloister.tasks.supervised.contrasts import (
    chosen_references,
    combination,
    difference,
    to_reference,
)
from cloister.tasks.supervised.linear import Linear

NAMES = ("age", "work=a", "work=b", "work=c", "intercept")
COLUMNS = (PublicColumn("age", 0.0, 90.0), PublicColumn("work", 0.0, 2.0, ("a", "b", "c")))


def test_noise_that_two_categories_share_cancels_in_their_contrast() -> None:
    shared = np.array([[4.0, 3.0], [3.0, 4.0]])
    found = combination(np.array([1.0, -1.0]), np.array([5.0, 2.0]), shared)
    assert (found.value, found.population) == (3.0, None)
    np.testing.assert_allclose((found.low, found.high), 3 + 1.96 * np.sqrt(2) * np.array([-1, 1]))
    alone = combination(np.array([1.0, -1.0]), np.array([5.0, 2.0]), np.diag(np.diag(shared)))
    assert alone.high - alone.low == pytest.approx(2 * 1.96 * np.sqrt(8))


def test_a_population_interval_of_a_contrast_adds_the_variance_of_the_sample() -> None:
    found = combination(np.array([1.0, -1.0]), np.zeros(2), 9 * np.eye(2), 16 * np.eye(2))
    assert found.population is not None
    np.testing.assert_allclose(found.population, 1.96 * np.sqrt(50) * np.array([-1, 1]))


def test_a_contrast_is_of_two_names_of_the_model() -> None:
    weights = difference(NAMES, "work=c", "work=a")
    np.testing.assert_array_equal(weights, [0, -1, 0, 1, 0])
    with pytest.raises(PlanError, match="'work=z'"):
        difference(NAMES, "work=z", "work=a")


def test_another_reference_tells_every_record_the_same() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=5)
    design = np.column_stack([rng.normal(size=6), np.eye(3)[[0, 1, 2, 0, 1, 2]], np.ones(6)])
    for chosen in range(3):
        moved = to_reference((0, 3), (0, chosen)) @ values
        assert moved[1 + chosen] == 0
        np.testing.assert_allclose(design @ moved, design @ values)


def test_the_first_category_is_the_reference_unless_another_is_chosen() -> None:
    assert chosen_references(COLUMNS, None, "y") == (0, 0)
    assert chosen_references(COLUMNS, {"work": "c"}, "y") == (0, 2)
    for wrong in ({"work": "z"}, {"age": "a"}, {"nobody": "a"}):
        with pytest.raises(PlanError, match="reference"):
            chosen_references(COLUMNS, wrong, "y")
    with pytest.raises(PlanError, match="reference must be a mapping"):
        Linear.Options(target="y", reference="work")  # type: ignore[arg-type]  # as a user may
