"""The privacy budget: an (epsilon, delta) pair that has been checked once."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cloister.errors import PlanError


@dataclass(frozen=True)
class Budget:
    """An upper bound on privacy loss, as (epsilon, delta)-differential privacy.

    Parameters
    ----------
    epsilon : float, > 0 and finite; it has no default anywhere
    delta : float in [0, 1); 0 asks for pure differential privacy

    Raises
    ------
    PlanError
        If either number is outside its range.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        epsilon = _number("epsilon", self.epsilon)
        if not (0 < epsilon < math.inf):
            raise PlanError(
                f"epsilon must be above 0 and finite, got {epsilon!r}: a release always costs "
                "something."
            )
        object.__setattr__(self, "epsilon", epsilon)
        object.__setattr__(self, "delta", checked_delta(self.delta))

    def __str__(self) -> str:
        return f"epsilon={self.epsilon:.6g}, delta={self.delta:.3g}"


def default_delta(nominal_n: int | None) -> float:
    """Return the delta used when none is given: ``min(1e-6, 1 / (100 nominal_n))``.

    Parameters
    ----------
    nominal_n : int, >= 1, or None
        Public contract value for the number of records; never ``len(X)``.

    Notes
    -----
    A delta near ``1 / n`` permits publishing a record outright; ``1 / (100 n)`` keeps the expected
    number of such failures below one in a hundred.
    """
    if nominal_n is None:
        return 1e-6
    if isinstance(nominal_n, bool) or not isinstance(nominal_n, int) or nominal_n < 1:
        raise PlanError(f"nominal_n must be a positive integer or None, got {nominal_n!r}.")
    return min(1e-6, 1 / (100 * nominal_n))


def checked_epsilon(epsilon: float) -> float:
    """Return the ``epsilon`` of a curve, which may be 0, or raise PlanError."""
    value = _number("epsilon", epsilon)
    if not (0 <= value < math.inf):
        raise PlanError(f"epsilon must be a finite number of at least 0, got {value!r}.")
    return value


def checked_delta(delta: float) -> float:
    """Return ``delta`` as a float, or raise PlanError unless it is in [0, 1)."""
    value = _number("delta", delta)
    if not (0 <= value < 1):
        raise PlanError(f"delta must be in [0, 1), got {value!r}.")
    return value


def _number(name: str, value: float) -> float:
    if isinstance(value, bool | str | bytes):
        raise PlanError(f"{name} must be a number, got {value!r}.")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise PlanError(f"{name} must be a number, got {value!r}.") from error
