from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from cloister.core.errors import PlanError
from cloister.privacy.budget import Budget, default_delta


def test_budget_keeps_its_numbers_as_floats() -> None:
    budget = Budget(1, np.float64(1e-6))
    assert (budget.epsilon, budget.delta) == (1.0, 1e-6)
    assert type(budget.epsilon) is float


def test_budget_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Budget(1.0, 0.0).epsilon = 2.0  # type: ignore[misc]


def test_budget_has_no_default_epsilon_or_delta() -> None:
    with pytest.raises(TypeError):
        Budget()  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Budget(1.0)  # type: ignore[call-arg]


@pytest.mark.parametrize("epsilon", [0, -1, math.inf, math.nan, "1", True, None])
def test_budget_refuses_an_epsilon_that_promises_nothing(epsilon: float) -> None:
    with pytest.raises(PlanError, match=r"epsilon must be a number > 0"):
        Budget(epsilon, 1e-6)


@pytest.mark.parametrize("delta", [-1e-9, 1, 2, math.inf, math.nan, "0", False])
def test_budget_refuses_a_delta_outside_zero_to_one(delta: float) -> None:
    with pytest.raises(PlanError, match="delta"):
        Budget(1.0, delta)


def test_plan_errors_are_value_errors() -> None:
    with pytest.raises(ValueError, match="epsilon"):
        Budget(-1.0, 0.0)


@pytest.mark.parametrize(
    ("nominal_n", "delta"), [(None, 1e-6), (1, 1e-6), (10_000, 1e-6), (100_000, 1e-7)]
)
def test_default_delta_is_below_a_hundredth_of_one_over_n(
    nominal_n: int | None, delta: float
) -> None:
    assert default_delta(nominal_n) == pytest.approx(delta)


@pytest.mark.parametrize("nominal_n", [0, -5, 1.5, True])
def test_default_delta_refuses_what_is_not_a_count(nominal_n: int) -> None:
    with pytest.raises(PlanError, match="nominal_n"):
        default_delta(nominal_n)
