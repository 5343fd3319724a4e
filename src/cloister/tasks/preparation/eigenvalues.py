"""Intervals of the eigenvalues of a covariance, from noisy sums along noisy eigenvectors.

Two sums over the same records are known. One has the moments of shortened records, with little
noise; its eigenvectors are the components. The other has squares of whole records along these
components, with more noise. docs/proofs/preparation.md derives the ends.

References
----------
.. [W12] Weyl's inequality: an eigenvalue changes at most by the largest eigenvalue of the noise.
.. [V18] Vershynin, "High-dimensional probability", 2018, theorems 5.2.2 and 7.2.11 (Gaussian
   concentration; comparison of Sudakov and Fernique): the size of the eigenvalues of noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import log, sqrt

import numpy as np

from cloister.core.arrays import Floats
from cloister.protocol.task import INTERVAL_95
from cloister.tasks.intervals import fieller

_Z = INTERVAL_95["gaussian"]
_SURE = 2.58  # deviations: with another lower end at _Z of them, 97 of 100 runs are above both
_SPREAD = _Z / sqrt(2)  # a length of p normal numbers exceeds sqrt(p) by it in 1 of 40 runs
_TAIL = sqrt(2 * log(1 / 0.025))  # a concentrated variable exceeds it in 1 of 40 runs


@dataclass(frozen=True)
class Eigenvalues:
    """Released sums over records, about a released mean.

    Parameters
    ----------
    count, count_std : float, records
        Noisy count and the deviation of its noise; the sums behind the mean have the same.
    squares : ndarray of shape (m + 1,)
        Noisy sums of squares along each of m components, and of the rest of squared lengths.
    squares_std : float
        Deviation of the noise of each of them.
    spectrum : ndarray of shape (p,)
        Eigenvalues of the noisy moments of shortened records, the largest first.
    products_std : float
        Deviation of the noise of a moment of two columns.
    places : ndarray of shape (m + 1,)
        The mean along each component, and its length.
    longest : float
        Largest possible squared length of a record.
    """

    count: float
    count_std: float
    squares: Floats
    squares_std: float
    spectrum: Floats
    products_std: float
    places: Floats
    longest: float

    @cached_property
    def _n(self) -> float:
        """Divisor n - 1; a count within its noise is uninformative."""
        return max(self.count - 1, 1.0, self.count_std)

    @cached_property
    def _mean_std(self) -> float:
        return self.count_std / self._n

    @cached_property
    def _most(self) -> float:
        """Upper end of the squared distance between released and exact mean."""
        longest = self._mean_std * (sqrt(len(self.spectrum)) + _SPREAD)
        return float(longest**2 * (1 + self.places[-1] ** 2))

    def intervals(self) -> dict[str, Floats]:
        """Return variances along the components, their shares and the total.

        Returns
        -------
        dict
            ``explained_variance`` and ``explained_variance_ratio`` of shape (m,),
            ``total_variance`` of shape (1,), each with ``_low`` and ``_high``. A variance is that
            along a released component; its interval holds this and the eigenvalue. A number whose
            interval is all that is possible is not a number.
        """
        n, m, p = self._n, len(self.squares) - 1, len(self.spectrum)
        words, entries = np.append(np.ones(m), m + 1), np.append(np.ones(m), p)
        # Squares about the noisy mean exceed those about the exact mean.
        moved = self._mean_std**2 * (entries + self.places**2)
        sums = np.append(self.squares[:m], self.squares.sum()) - moved * n
        var = self.squares_std**2 * words + 2 * (moved * n) ** 2
        below, above = self._turned()
        box = (0.0, self.longest)
        less = np.array(self.count - 1)
        low, high = fieller(sums, less, var, self.count_std**2, box=box)
        low = np.clip(np.maximum(low + moved - below, self._least()) - self._most, *box)
        high = np.clip(high + above, low, self.longest)
        values = np.clip(sums / n, low, high)

        ends = fieller(sums[:m], sums[-1], var[:m], var[-1], self.squares_std**2, box=(0.0, 1.0))
        tiny = 2.0**-32 * self.longest
        total, least, most = np.maximum([values[m], low[m], high[m]], tiny)
        share_low = np.maximum(ends[0] - below[:m] / total, low[:m] / most)
        share_high = np.minimum(ends[1] + above[:m] / total, high[:m] / least)
        share_low, share_high = np.clip([share_low, np.maximum(share_low, share_high)], 0, 1)
        ratio = np.clip(values[:m] / total, share_low, share_high)
        # An interval of all that is possible tells nothing, and neither does its middle.
        values[(low <= 0) & (high >= self.longest)] = np.nan
        ratio[(share_low <= 0) & (share_high >= 1)] = np.nan
        return {
            "explained_variance": values[:m],
            "explained_variance_low": low[:m],
            "explained_variance_high": high[:m],
            "explained_variance_ratio": ratio,
            "explained_variance_ratio_low": share_low,
            "explained_variance_ratio_high": share_high,
            "total_variance": values[m:],
            "total_variance_low": low[m:],
            "total_variance_high": high[m:],
        }

    def _least(self) -> Floats:
        """Return lower ends of eigenvalues and total from the shortened records.

        A whole record has larger moments than a shortened one, so all eigenvalues are larger.
        """
        m, p = len(self.squares) - 1, len(self.spectrum)
        s, known = self.products_std, np.append(self.spectrum[:m], self.spectrum.sum())
        # Noise lengthens the first eigenvalues, by turning their vectors and along them.
        turned = np.append(_turn(self._gaps, 0.0, 0.0, s * (sqrt(p - 1) + _SPREAD)), 0.0)[:m]
        weyl = s * (2 * sqrt(p) + _TAIL * sqrt(2))
        along = np.minimum(weyl, _SURE * sqrt(2) * s + turned)
        margin = np.append(along, _SURE * sqrt(2 * p) * s)
        margin = np.hypot(margin, _SURE * known * self._mean_std)
        return np.asarray((known - margin) / self._n)

    @cached_property
    def _gaps(self) -> Floats:
        """Differences of neighbours in the spectrum, less a deviation of their noise."""
        return self.spectrum[:-1] - self.spectrum[1:] - 2 * self.products_std

    def _turned(self) -> tuple[Floats, Floats]:
        """Return the largest differences of eigenvalues to the variances, below and above.

        A difference comes from vectors that are turned by noise or by shortening. It is second
        order. Its noise and that of the variance add in squares, so one deviation is enough here.
        """
        m, p, std = len(self.squares) - 1, len(self.spectrum), self.squares_std
        # Shortening takes these from the moments along each component and from the rest.
        taken = self.squares - np.append(self.spectrum[:m], self.spectrum[m:].sum())
        words = np.sqrt(np.arange(1, m + 2))
        own = np.maximum(taken + np.hypot(std, sqrt(2) * self.products_std), 0)
        before = np.maximum(np.cumsum(taken) + words * std, 0)
        after = np.maximum(np.cumsum(taken[::-1]) + words * std, 0)[::-1]
        beside = self.products_std * sqrt(p - 1) + self._most * self._n / 2
        first, last = self._gaps[: m - 1], self._gaps[:m]  # none after the last of all p
        k = len(last)
        below = _turn(first, before[: m - 1], own[1:m], beside)
        above = _turn(last, own[:k], after[1 : k + 1], beside)
        none = np.zeros(m + 1 - k)
        return np.hstack([0.0, below, 0.0]) / self._n, np.hstack([above, none]) / self._n


def _turn(gap: Floats, upper: Floats | float, lower: Floats | float, beside: float) -> Floats:
    """Return by how much an eigenvalue differs from its entry on the diagonal of a 2 x 2 matrix.

    The matrix is ``[[gap, 0], [0, 0]]``, a positive matrix of diagonal `upper` and `lower`, and a
    number of at most `beside` off the diagonal.
    """
    middle, off = gap + upper - lower, np.sqrt(upper * lower) + beside
    return np.asarray((np.hypot(middle, 2 * off) - middle) / 2)
