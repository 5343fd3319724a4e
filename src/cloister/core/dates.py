"""Days as numbers: the year with a fraction, which is readable in any table."""

from __future__ import annotations

from contextlib import suppress
from datetime import date, datetime

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
