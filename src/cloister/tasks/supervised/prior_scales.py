"""Location and scale of numeric columns, from noisy counts in bins.

A box may be a hundred times as wide as a column's values. The noise of sums of squares is as large
as the box, but that of counts is not. A first histogram of the box gives a window. A second one of
the window gives centre and spread. Classes beyond it, each twice as wide as the previous one, show
tails. Everything here is a function of released counts and public numbers: `noise_std` is the noise
of each count, `n` the noisy number of records.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist

import numpy as np

from cloister.core.arrays import Floats

BINS = 32
"""Number of bins of a box, and of a window in it."""
TAILS = 6
"""Number of classes beyond a window, on each side."""

_WINDOW = 3.0  # deviations on each side of the centre
_SURE = 3.0  # deviations of noise, up to which records may be hidden
_MOST_HIDDEN = 0.4  # share of all records
_ALIKE = 0.9  # share of all records in two bins
_FREQUENT = 0.7  # share of all records in one bin


@dataclass(frozen=True)
class Spread:
    """Location and scale of a column from its counts, on the grid."""

    centre: float
    deviation: float  # at least about the true one, including tails that noise hides
    square: float  # mean square about the centre of the counted records, including tails
    alike: bool  # hardly two values differ: the deviation is then that of hidden distant records


def edges(low: float, high: float) -> Floats:
    """Return the ends of a window's bins and of the classes beyond it, from low to high."""
    beyond = (high - low) / 2 * (2.0 ** np.arange(1, TAILS + 1) - 1)
    return np.concatenate([low - beyond[::-1], np.linspace(low, high, BINS + 1), high + beyond])


def window_of(counts: Floats, noise_std: float, n: float) -> tuple[float, float]:
    """Return the window of the box ``[-1, 1]`` to count in next, from counts of its `BINS`."""
    centre, deviation = _normal(counts, np.linspace(-1, 1, BINS + 1), noise_std, n)
    low, high = np.clip([centre - _WINDOW * deviation, centre + _WINDOW * deviation], -1, 1)
    return float(low), float(high)


def spread_of(counts: Floats, window: Floats, noise_std: float, n: float) -> Spread:
    """Return location and scale of a column.

    `counts`, of shape (BINS + 2 * TAILS,), cover a window and the classes beyond it.
    """
    ends = edges(*window)
    inside = counts[TAILS:-TAILS]
    centre, deviation = _normal(inside, ends[TAILS:-TAILS], noise_std, n)
    in_box = (ends[1:] > -1) & (ends[:-1] < 1)  # classes outside of the box hold only noise
    counts, middles = counts[in_box], np.clip((ends[1:] + ends[:-1]) / 2, -1, 1)[in_box]
    seen = counts * _sure(counts, noise_std) * _sure(counts[::-1], noise_std)[::-1]
    square = max(float(seen @ (middles - centre) ** 2) / n, 0.0)
    most = float((inside[1:] + inside[:-1]).max()) / n
    frequent = most > _ALIKE or float(inside.max()) > _FREQUENT * n
    alike = frequent and sqrt(square) < 2 * (ends[TAILS + 1] - ends[TAILS])
    # Records without a frequent value may be in so many bins that noise hides them.
    hidden = sqrt(noise_std * sqrt(BINS) / n) if frequent else 0.0
    return Spread(centre, min(max(deviation, sqrt(square), hidden), 1.0), square, bool(alike))


def _normal(counts: Floats, ends: Floats, noise_std: float, n: float) -> tuple[float, float]:
    """Return centre and deviation of equal bins.

    Counts beyond the first and the last bin are within the noise. The bins between are taken for
    the middle of a normal distribution with that share beyond them.
    """
    # A sum of m noisy counts has sqrt(m) times the noise of one.
    least = _SURE * noise_std * np.sqrt(np.arange(1, len(counts) + 1))
    below, above = np.cumsum(counts) > least, np.cumsum(counts[::-1]) > least
    first, last = sorted([int(below.argmax()), len(counts) - 1 - int(above.argmax())])
    step = float(ends[1] - ends[0])
    middles = ends[first : last + 1] + step / 2
    weights = np.maximum(counts[first : last + 1], 1e-9)
    centre = float(np.average(middles, weights=weights))
    # Within a bin values are taken to be even, which adds step**2 / 12.
    variance = float(np.average((middles - centre) ** 2, weights=weights)) + step**2 / 12
    outside = max(first, len(counts) - 1 - last)
    hidden = float(np.clip(least[outside] / n, 1e-9, _MOST_HIDDEN))
    normal = step * (last + 1 - first) / 2 / -NormalDist().inv_cdf(hidden)
    return centre, max(sqrt(variance), normal)


def _sure(counts: Floats, noise_std: float) -> Floats:
    """Return 0 for the first counts, while their sum is within the noise, then 1."""
    found = np.cumsum(counts) > _SURE * noise_std * np.sqrt(np.arange(1, len(counts) + 1))
    return np.maximum.accumulate(found).astype(np.float64)
