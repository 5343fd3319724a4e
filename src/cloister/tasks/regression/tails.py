"""Lengths to which payloads are cut, from noisy counts of their sizes: the only rule for it.

`counts` are noisy numbers of units by the class of their size, of shape ``(len(CLASSES),)``, and
`noise_std` is the noise of each of them. A `price` is the half-width of the noise of a sum per unit
of the length to which its payloads are cut.

References
----------
.. [H75] Hill, "A simple general approach to inference about the tail of a distribution",
   Annals of Statistics 3(5), 1975: tails that fall like a power.
"""

from __future__ import annotations

import numpy as np

from cloister.core.arrays import Floats, Integers
from cloister.core.randomness import public_generator

CLASSES = 2.0 ** (np.arange(-24, 41) / 2)
"""Upper ends of the classes in which sizes are counted, two to an octave."""

_SURE = 3.0  # deviations of noise above which a count is relied on
_FLATTEST, _STEEPEST = 1.4, 4.0  # powers of a tail
_SAME_WAY = 0.7  # share of cut parts that point in the same direction
_DRAWS = 64  # of the noise of counts
_PLACES = 60  # at which a cut is tried


def class_of(sizes: Floats) -> Integers:
    """Return the number of the class of each size; sizes that are not numbers are in the last."""
    found = np.searchsorted(CLASSES, sizes)
    return np.minimum(found, len(CLASSES) - 1).astype(np.int64)


def middle_class(counts: Floats, n: float) -> int:
    """Return the class that half of `n` units reach."""
    return int(np.argmax(np.cumsum(counts) > n / 2))


def cut_of(
    counts: Floats, noise_std: float, most: float, price: float, n: float
) -> tuple[float, float]:
    """Choose the length to which payloads are cut.

    Parameters
    ----------
    most : float
        A public bound on all sizes.

    Returns
    -------
    cut : float
        The length at which noise and what is cut off are least together.
    excess : float
        Likely length of the sum of all parts that are cut off.

    Notes
    -----
    The number of units above a class is taken from the counts, as far as it is above the
    noise. Beyond, it falls like a power that is as steep as the last octave [H75]_. The excess is
    the root of its mean square over redraws of the noise.
    """
    top = min(int(np.searchsorted(CLASSES, most)) + 1, len(CLASSES) - 1)
    counts = counts[: top + 1]
    noise = public_generator("tail of sizes").normal(0.0, 1.0, (_DRAWS, top + 1))
    drawn = np.vstack([counts, counts + noise_std * noise])
    above = np.zeros_like(drawn)  # numbers of units above the upper end of a class
    above[:, :-1] = np.cumsum(drawn[:, :0:-1], axis=1)[:, ::-1]
    error = noise_std * np.sqrt(np.maximum(np.arange(top, -1, -1), 1.0))
    middle = min(middle_class(counts, n), top - 1)
    last = middle
    while last + 1 < top and above[0, last + 1] > _SURE * error[last + 1]:
        last += 1
    left = np.maximum(above[:, last], 0.0)[:, None]
    before = np.maximum(above[:, max(last - 2, 0)], 1.0)[:, None]  # an octave lower
    power = np.clip(np.log2(before / np.maximum(left, 1e-3)), _FLATTEST, _STEEPEST)
    end = CLASSES[last]
    most = max(most, end * 1.01)
    cuts = np.geomspace(CLASSES[middle], most, _PLACES)
    # The excess above a cut is the integral of the number above, from the cut on.
    far = np.maximum(cuts, end)
    lost = left * ((far / end) ** -power * far - (most / end) ** -power * most) / (power - 1)
    for j in range(middle, last):
        width = np.maximum(CLASSES[j + 1] - np.maximum(CLASSES[j], cuts), 0.0)
        lost = lost + np.maximum(above[:, j : j + 1], left) * width
    excess = _SAME_WAY * np.sqrt((lost**2).mean(axis=0))
    best = int(np.hypot(price * cuts, excess).argmin())
    return float(cuts[best]), float(excess[best])


def cut_of_squares(counts: Floats, noise_std: float, n: float, price: float) -> float:
    """Return the length to which payloads are cut for the sum of their products.

    The sum of noise and lost squares is least there, over sizes with counts above the noise. The
    price is per unit of squared length.
    """
    middle = middle_class(counts, n)
    last, octaves = middle, 4
    while last + 1 < len(counts) and counts[last + 1 :][:octaves].sum() > _SURE * 2 * noise_std:
        last += 1
    squares = CLASSES[: last + 2] ** 2
    lost = np.maximum(squares - squares[:, None], 0.0) @ np.maximum(counts[: last + 2], 0.0)
    return float(CLASSES[max(int((price * squares + lost).argmin()), middle)])
