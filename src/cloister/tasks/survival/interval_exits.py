"""The noisy table of exits in a few intervals of time.

The table ``exits`` has the shape ``(..., K + 1, 2)``. For each of K intervals of time it holds the
numbers of records that left with the event and without it (censored). Intervals are open on the
left and closed on the right; the first begins at 0. **The last row counts the records followed to
the end of all intervals**, with or without a later event: it has one number, and 0. Numbers have
independent Gaussian noise of one deviation, in records, and may be negative. The number at risk is
a sum over later rows, so that a record adds 1 to one number for every K.
"""

from __future__ import annotations

import numpy as np

from cloister.core.arrays import Flags, Floats, Integers

_CLEAR = 2.0  # deviations of its noise that a number at risk must exceed
_LEAST_HAZARD, _MOST_HAZARD = -0.5, 0.95  # of one interval, so that log(1 - hazard) is finite
_TINY = 1e-12


def word_of(row: Integers, event: Integers, intervals: int) -> Integers:
    """Return the index of the number of a table to which each record adds 1."""
    # The last row has a single number, for records with and without a later event.
    return np.asarray(2 * row + ((event == 0) & (row < intervals)))


def table_of(words: Floats) -> Floats:
    """Return the table of exits, (..., K + 1, 2), from its 2 K + 1 numbers."""
    whole = np.concatenate([words, np.zeros_like(words[..., :1])], axis=-1)
    return whole.reshape(*words.shape[:-1], -1, 2)


def at_risk(exits: Floats, noise: float) -> tuple[Floats, Floats]:
    """Return the number at risk in each interval, (..., K), and the deviation of its noise, (K,).

    Half of the records that are censored in an interval count as being at risk in it.
    """
    # Sums over later rows: a table of numbers at risk would have K times the squared norm.
    still = np.cumsum(exits.sum(axis=-1)[..., ::-1], axis=-1)[..., :0:-1]
    words = 2.0 * np.arange(exits.shape[-2], 1, -1) - 1
    return still - exits[..., :-1, 1] / 2, noise * np.sqrt(words)


def usable(risk: Floats, std: Floats) -> Flags:
    """Return the mask of intervals, from the first on, whose number at risk is above its noise."""
    return np.logical_and.accumulate(risk > np.maximum(_CLEAR * std, 1.0), axis=-1)


def hazards(exits: Floats, noise: float) -> tuple[Floats, Floats]:
    """Return the hazard of each interval, and the number at risk, at least 1."""
    # Not cut at 0: sums of noisy hazards are unbiased, sums of hazards cut at 0 are not.
    risk = np.maximum(*np.broadcast_arrays(*at_risk(exits, noise)))
    risk = np.maximum(risk, 1.0)
    return np.clip(exits[..., :-1, 0] / risk, _LEAST_HAZARD, _MOST_HAZARD), risk


def usual_intervals(nominal_n: int, noise: float) -> int:
    """Return a number of intervals in [4, 60]; the more noise, the fewer."""
    return int(np.clip(round((nominal_n / max(noise, _TINY)) ** 0.4), 4, 60))
