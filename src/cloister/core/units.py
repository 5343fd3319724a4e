"""Population intervals and tests for records of which several belong to one unit of privacy.

Rows of one person are not drawn independently. Let a unit have at most g rows. By the inequality of
Cauchy and Schwarz, the variance of a sum over units is at most g times that of independent rows. It
is that large if all rows of a unit are alike. So sampling errors are multiplied by the square root
of g. A p-value assumes independent rows, so it is not known.
"""

from __future__ import annotations

from fnmatch import fnmatch

import numpy as np

from cloister.core.arrays import Floats, Ranges, Results
from cloister.core.display import ENDS, is_ratio

_P_VALUES = ("p", "_p", "_holm")


def for_units(results: Results, rows: int, ranges: Ranges) -> Results:
    """Return results whose intervals and tests hold for units of at most `rows` records.

    Population intervals are cut at the possible values in `ranges`.
    """
    if rows == 1:
        return results
    found = dict(results)
    for name, values in results.items():
        last = name.rpartition(".")[2]
        if is_p_value(name):
            found[name] = np.full_like(values, np.nan)
        if not f"_{last}".endswith(ENDS[0]):
            continue
        # The ends of a single result have no name before them.
        stem = name[: len(name) - len(ENDS[0]) + 1]
        low, high = _noise_of(stem, results)
        ends = values, results[f"{stem}{ENDS[1][1:]}"]
        wide = _widened(low, high, *ends, rows, logarithms=is_ratio(stem.rstrip("_")))
        least, most = _possible(stem.rstrip("_"), ranges)
        wide = np.maximum(wide[0], least), np.minimum(wide[1], most)
        found |= {f"{stem}{end[1:]}": array for end, array in zip(ENDS, wide, strict=True)}
    return found


def is_p_value(name: str) -> bool:
    """Return True for the name of a result that is a p-value."""
    last = name.rpartition(".")[2]
    return last == _P_VALUES[0] or last.endswith(_P_VALUES[1:])


def _possible(name: str, ranges: Ranges) -> tuple[float, float]:
    """Return the least and the greatest possible value of a result."""
    for pattern, ends in ranges.items():
        # The name of a column or a table may stand before that of the result.
        if fnmatch(name, pattern) or fnmatch(name, f"*.{pattern}"):
            return ends
    return -np.inf, np.inf


def _noise_of(stem: str, results: Results) -> tuple[Floats, Floats]:
    """Return the ends of the noise interval of the result whose ends begin with `stem`."""
    if f"{stem}low" in results:
        return results[f"{stem}low"], results[f"{stem}high"]
    value, margin = results[stem.rstrip("_")], results[f"{stem}half_width"]
    return value - margin, value + margin


def _widened(
    low: Floats,
    high: Floats,
    wide_low: Floats,
    wide_high: Floats,
    rows: int,
    *,
    logarithms: bool,
) -> tuple[Floats, Floats]:
    """Return population ends with sampling errors multiplied by the root of `rows`.

    Noise and sampling errors are independent, so the squares of their half-widths add.
    """
    if logarithms:
        with np.errstate(divide="ignore", invalid="ignore"):  # an end may be 0
            low, high, wide_low, wide_high = map(np.log, (low, high, wide_low, wide_high))
    with np.errstate(invalid="ignore"):  # an infinite end stays infinite
        middle, factor = (low + high) / 2, np.sqrt(rows)
        below = np.sqrt(np.maximum((middle - wide_low) ** 2 - (middle - low) ** 2, 0.0))
        above = np.sqrt(np.maximum((wide_high - middle) ** 2 - (high - middle) ** 2, 0.0))
        ends = (
            middle - np.hypot(middle - low, factor * below),
            middle + np.hypot(high - middle, factor * above),
        )
    known = [
        np.where(np.isfinite(end), end, old)
        for end, old in zip(ends, (wide_low, wide_high), strict=True)
    ]
    least, most = (np.exp(end) for end in known) if logarithms else known
    return least, most
