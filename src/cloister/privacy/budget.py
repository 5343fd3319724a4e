"""The privacy budget: a validated (epsilon, delta) pair."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cloister.core.declared import Declaration, Range, Whole, validate
from cloister.core.errors import PlanError, choosing

_ABOVE_0 = Range(above=0)


@dataclass(frozen=True)
class Budget:
    """An upper bound on privacy loss, as (epsilon, delta)-differential privacy.

    Parameters
    ----------
    epsilon : float, > 0 and finite; no interface has a default for it
    delta : float in [0, 1); 0 means pure differential privacy

    Raises
    ------
    PlanError
        If either number is outside its range.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        hint = f"; every release has a cost{choosing('epsilon')}"
        # As floats, so that equal budgets have the same JSON text.
        object.__setattr__(self, "epsilon", checked("epsilon", self.epsilon, _ABOVE_0, hint))
        object.__setattr__(self, "delta", checked_delta(self.delta))

    def __str__(self) -> str:
        return f"epsilon={self.epsilon:.6g}, delta={self.delta:.3g}"


def default_delta(nominal_n: int | None) -> float:
    """Return the default delta: ``min(1e-6, 1 / (100 nominal_n))``.

    Parameters
    ----------
    nominal_n : int, >= 1, or None
        Public number of records in the contract; never ``len(X)``, which is not public.

    Notes
    -----
    A delta near ``1 / n`` permits the publication of a whole record. With ``1 / (100 n)`` the
    expected number of such failures is below one in a hundred.
    """
    if nominal_n is None:
        return 1e-6
    validate(Declaration("nominal_n", Whole | None, None), nominal_n)
    return min(1e-6, 1 / (100 * nominal_n))


def checked_epsilon(epsilon: float) -> float:
    """Return the ``epsilon`` of a privacy profile, which may be 0, or raise PlanError."""
    return checked("epsilon", epsilon, Range(0))


def checked_delta(delta: float) -> float:
    """Return ``delta`` as a float, or raise PlanError unless it is in [0, 1)."""
    return checked("delta", delta, Range(0, below=1))


def checked(name: str, value: float, allowed: Range, hint: str = "") -> float:
    """Return a number of any kind as a float, or raise PlanError unless it is in a range."""
    try:
        # float() accepts True and "2", which are most likely mistakes of the caller.
        number = math.nan if isinstance(value, bool | str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    # A number that cannot be read is NaN, which is in no range.
    if not allowed.holds(number):
        raise PlanError(f"{name} must be a number{allowed}, got {value!r}{hint}.")
    return number
