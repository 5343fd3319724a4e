"""The privacy budget: an (epsilon, delta) pair that has been checked once."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cloister.core.declared import Declaration, Range, Whole, validate
from cloister.core.errors import PlanError

_ABOVE_0 = Range(above=0)


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
        free = "; a release always costs something"
        object.__setattr__(self, "epsilon", checked("epsilon", self.epsilon, _ABOVE_0, free))
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
    validate(Declaration("nominal_n", Whole | None, None), nominal_n)
    return min(1e-6, 1 / (100 * nominal_n))


def checked_epsilon(epsilon: float) -> float:
    """Return the ``epsilon`` of a curve, which may be 0, or raise PlanError."""
    return checked("epsilon", epsilon, Range(0))


def checked_delta(delta: float) -> float:
    """Return ``delta`` as a float, or raise PlanError unless it is in [0, 1)."""
    return checked("delta", delta, Range(0, below=1))


def checked(name: str, value: float, allowed: Range, hint: str = "") -> float:
    """Return a number of any kind as a float, or raise PlanError unless it is in a range."""
    try:
        # float() would take True for 1 and "2" for 2: most likely a mistake of the caller.
        number = math.nan if isinstance(value, bool | str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not allowed.holds(number):
        raise PlanError(f"{name} must be a number{allowed}, got {value!r}{hint}.")
    return number
