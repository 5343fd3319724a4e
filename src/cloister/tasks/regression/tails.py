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

from dataclasses import dataclass
from typing import Self

import numpy as np

from cloister.core.arrays import Floats, Integers
from cloister.core.randomness import public_generator

CLASSES = 2.0 ** (np.arange(-24, 41) / 2)
"""Upper ends of the classes in which sizes are counted, two to an octave."""

SURE, _CERTAIN = 3.0, 5.0
"""Deviations of noise above which a count is relied on."""
_FLATTEST, STEEPEST = 1.4, 4.0  # powers of a tail
_FLATTEST_SQUARED = 2.5
SAME_WAY = 0.7  # share of cut parts that point in the same direction
_DRAWS = 64  # of the noise of counts
_PLACES = 60  # at which a cut is tried


def class_of(sizes: Floats) -> Integers:
    """Return the number of the class of each size; sizes that are not numbers are in the last."""
    found = np.searchsorted(CLASSES, sizes)
    return np.minimum(found, len(CLASSES) - 1).astype(np.int64)


def middle_class(counts: Floats, n: float) -> int:
    """Return the class that half of `n` units reach."""
    return int(np.argmax(np.cumsum(counts) > n / 2))


def falling(counts: Floats, n: float) -> Floats:
    """Return counts that do not rise beyond the class that half of `n` units reach.

    Their sums are less noisy than those of counts one by one.
    """
    from scipy.optimize import isotonic_regression

    beyond = middle_class(counts, n)
    after = isotonic_regression(counts[beyond:], increasing=False).x
    return np.concatenate([counts[:beyond], after])


@dataclass(frozen=True)
class Tail:
    """Numbers of units above each size, as far as noisy counts show them.

    Up to the class `last` they are the counts above it. Beyond, they fall like a power that is as
    steep as the octave before [H75]_, up to the size `most`. There is a row for each redraw of the
    noise.
    """

    above: Floats
    power: Floats
    middle: int  # class that half of the units reach
    last: int
    most: float

    @classmethod
    def of(
        cls,
        counts: Floats,
        noise_std: float,
        most: float,
        n: float,
        steepest: float = STEEPEST,
        sure: float = SURE,
    ) -> Self:
        """Return the tail of `n` units whose sizes are probably at most `most`.

        It falls by a power of at most `steepest`, from the last class whose count is more than
        `sure` deviations above 0.
        """
        above = np.append(np.cumsum(counts[:0:-1])[::-1], 0.0)
        seen = np.flatnonzero(above > _CERTAIN * noise_std * np.sqrt(np.arange(len(counts))[::-1]))
        # The largest size is a guess if units have many rows: counts may show larger ones.
        top = max(int(np.searchsorted(CLASSES, most)), int(seen[-1]) if seen.size else 0) + 1
        top = min(top, len(CLASSES) - 1)
        counts = counts[: top + 1]
        noise = public_generator("tail of sizes").normal(0.0, 1.0, (_DRAWS, top + 1))
        drawn = np.vstack([counts, counts + noise_std * noise])
        above = np.zeros_like(drawn)
        above[:, :-1] = np.cumsum(drawn[:, :0:-1], axis=1)[:, ::-1]
        error = noise_std * np.sqrt(np.maximum(np.arange(top, -1, -1), 1.0))
        last = middle = min(middle_class(counts, n), top - 1)
        while last + 1 < top and above[0, last + 1] > sure * error[last + 1]:
            last += 1
        left = np.maximum(above[:, last], 1e-3)
        before = np.maximum(above[:, max(last - 2, 0)], 1.0)  # an octave lower
        power = np.clip(np.log2(before / left), _FLATTEST, steepest)
        return cls(above, power[:, None], middle, last, max(most, CLASSES[last] * 1.01))

    def excess(self, cuts: Floats) -> Floats:
        """Return the likely length of the sum of all parts above each cut.

        It is the root of the mean square over redraws of the noise.
        """
        return SAME_WAY * self._beyond(cuts, 1)

    def squares(self, cuts: Floats) -> Floats:
        """Return the likely loss of the sum of squares of sizes by each cut."""
        return self._beyond(cuts, 2)

    def _beyond(self, cuts: Floats, k: int) -> Floats:
        """Return the sum of the k-th powers above those of cuts, as a root of mean squares."""
        end, left = CLASSES[self.last], np.maximum(self.above[:, self.last], 0.0)[:, None]
        # The sum above a cut is the integral of the number of units above, from the cut on.
        far = np.clip(cuts, end, self.most)
        # Sums of squares only mean something for tails that fall faster than the second power.
        power = np.maximum(self.power, _FLATTEST if k == 1 else _FLATTEST_SQUARED)
        whole = (far / end) ** -power * far**k - (self.most / end) ** -power * self.most**k
        lost = left * whole * k / (power - k)
        for j in range(self.middle, self.last):
            width = CLASSES[j + 1] ** k - np.maximum(CLASSES[j], cuts) ** k
            # Of squares, classes are so wide that the number at their lower end is too large.
            number = self.above[:, j : j + k].mean(axis=1, keepdims=True)
            lost = lost + np.maximum(number, left) * np.maximum(width, 0.0)
        return np.asarray(np.sqrt((lost**2).mean(axis=0)))

    def cut(self, price: float, weight: float = 1.0) -> tuple[float, float]:
        """Return the cut at which noise and what is cut off are least, and that excess.

        The excess counts with a `weight`.
        """
        excess = self.excess(self._cuts)
        best = int(np.hypot(price * self._cuts, weight * excess).argmin())
        return float(self._cuts[best]), float(excess[best])

    def cut_of_squares(self, price: float) -> tuple[float, float]:
        """Return the cut at which noise and lost squares of sizes are least, and these squares.

        The price is per unit of the squared cut.
        """
        lost = self.squares(self._cuts)
        best = int((price * self._cuts**2 + lost).argmin())
        return float(self._cuts[best]), float(lost[best])

    @property
    def _cuts(self) -> Floats:
        return np.geomspace(CLASSES[self.middle], self.most, _PLACES)


def cut_of_squares(counts: Floats, noise_std: float, n: float, price: float) -> float:
    """Return the length to which payloads are cut for the sum of their products.

    The sum of noise and lost squares is least there, over sizes with counts above the noise. The
    price is per unit of squared length.
    """
    middle = middle_class(counts, n)
    last, octaves = middle, 4
    while last + 1 < len(counts) and counts[last + 1 :][:octaves].sum() > SURE * 2 * noise_std:
        last += 1
    squares = CLASSES[: last + 2] ** 2
    lost = np.maximum(squares - squares[:, None], 0.0) @ np.maximum(counts[: last + 2], 0.0)
    return float(CLASSES[max(int((price * squares + lost).argmin()), middle)])
