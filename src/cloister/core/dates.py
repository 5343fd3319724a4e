"""Days as numbers: the year with a fraction, which is readable in any table."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import MAXYEAR, MINYEAR, date, datetime, timedelta
from math import floor, isfinite

import numpy as np
from numpy.typing import NDArray

from cloister.core.arrays import Floats


def day_of(text: str, form: str = "") -> date:
    """Return the day in a text, in a format of strptime or else in ISO 8601."""
    if form:
        with suppress(ValueError):
            return datetime.strptime(text, form).date()
    return datetime.fromisoformat(text).date()


def decimal_years(days: NDArray[np.datetime64]) -> Floats:
    """Return days as years: 2 July 2021 is 2021.5 (rounded); NaN for a missing day."""
    days = days.astype("M8[D]")
    year = days.astype("M8[Y]")
    first = year.astype("M8[D]")
    # Leap years are longer, so that each year ends where the next begins.
    length = (year + 1).astype("M8[D]") - first
    return np.asarray(year.astype(np.int64) + 1970 + (days - first) / length)


def nearest_day(years: float) -> date:
    """Return the day that is nearest to a finite number of years; see :func:`decimal_years`."""
    year = min(max(floor(years), MINYEAR), MAXYEAR - 1)
    first = date(year, 1, 1)
    length = (date(year + 1, 1, 1) - first).days
    return first + timedelta(days=round(min(max(years - year, 0), 1) * length))


def as_days(years: Iterable[float]) -> tuple[date | float, ...]:
    """Return numbers of years as days; what is not finite stays a number."""
    return tuple(nearest_day(value) if isfinite(value) else value for value in years)
