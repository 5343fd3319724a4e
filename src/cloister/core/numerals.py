"""The text of numbers and of their intervals, the same in reports, commands and Python."""

from __future__ import annotations

import math

from cloister.core.dates import nearest_day

NOT_KNOWN = "not known"
"""The text of a value that is not a number."""
_DAYS = 365.25  # of a year
_LARGE, _SMALL = 1e7, 1e-4  # beyond these a number is shown with an exponent


def number(value: float) -> str:
    """Return a number with four significant digits, without an exponent where it is readable."""
    if not math.isfinite(value):
        return NOT_KNOWN if math.isnan(value) else ("∞" if value > 0 else "-∞")
    if value and not _SMALL <= abs(value) < _LARGE:
        return f"{value:.3g}"
    decimals = max(0, 3 - math.floor(math.log10(abs(value)))) if value else 0
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def day(years: float) -> str:
    """Return a date in ISO 8601 from its year with a fraction."""
    return str(nearest_day(years)) if math.isfinite(years) else number(years)


def counted(n: int, thing: str) -> str:
    """Return a number of things, such as "1 row", "1,200 rows" or "no rows"."""
    stem, last = thing[:-1], thing[-1]
    several = {"y": f"{stem}ies", "s": f"{thing}es"}.get(last * (thing[-2:] != "ay"), f"{thing}s")
    return f"{n:,} {thing if n == 1 else several}" if n else f"no {several}"


def time_margin(years: float) -> str:
    """Return a margin of error of a date: in days, with its years, or in years from one on."""
    if not years < 1:
        return f"± {number(years)} years"
    return f"± {number(years * _DAYS)} days ({number(years)} years)"


def plus_minus(value: float, margin: float) -> str:
    """Return ``value ± margin``, both rounded to two significant digits of the margin of error."""
    if not (math.isfinite(value) and math.isfinite(margin)) or margin <= 0:
        return number(value)
    places = _decimals(margin, value)
    if places is None:
        return f"{value:.4g} ± {margin:.2g}"
    return f"{_rounded(value, places)} ± {_rounded(margin, places)}"


def between(value: float, low: float, high: float) -> str:
    """Return ``value [low, high]``, rounded to two significant digits of the half-width."""
    ends, half_width = (value, low, high), (high - low) / 2
    both = ("lower", low), ("upper", high)
    if math.isnan(value) and low == 0 and high == math.inf:
        return NOT_KNOWN  # all that a ratio can be
    # A ratio over noise has no bound, nor has a median of survival with too few events.
    if math.isfinite(low) != math.isfinite(high) and not math.isnan(low + high):
        texts = [f"no {side} bound" if math.isinf(end) else number(end) for side, end in both]
        return "{} [{}, {}]".format(number(value), *texts)
    if not all(map(math.isfinite, ends)) or half_width <= 0:
        return number(value)
    places = _decimals(half_width, *ends)
    texts = [f"{x:.4g}" if places is None else _rounded(x, places) for x in ends]
    return "{} [{}, {}]".format(*texts)


def _decimals(margin: float, *values: float) -> int | None:
    """Return the decimals that show two digits of a margin, or None if an exponent is clearer."""
    # More digits than two of the margin would look exact, and are noise.
    if not _SMALL <= margin < _LARGE or max(map(abs, values)) >= _LARGE:
        return None
    return max(0, 1 - math.floor(math.log10(margin)))


def _rounded(value: float, places: int) -> str:
    return f"{round(value, places) + 0.0:,.{places}f}"  # adding 0.0 turns -0.0 into 0.0
