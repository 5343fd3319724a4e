"""The density of noisy counts in the cells of a box: normal kernels with masses >= 0.

Sums over cells are computed in whole numbers. So the result does not depend on the order of
addition, nor on the library that multiplies matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import erf, fsum, sqrt

import numpy as np

from cloister.core.arrays import Floats

FINE = 1 << 30
"""Units of all masses together."""

_UNITS = 1 << 12  # units of a kernel
_EXACT = 1 << 40  # total mass up to which products with a kernel have exact sums
_STEPS = 100


def kernel(bins: int, cuts: int, width: float) -> Floats:
    """Return the share of each cell's normal kernel in each section of an axis.

    Parameters
    ----------
    bins, cuts : int
        Numbers of cells, and of equal sections of each cell.
    width : float
        Standard deviation of the kernel, in cells.

    Returns
    -------
    ndarray of shape (bins * cuts, bins)
        Multiples of ``2**-12``. Each column sums to 1, because the mass beyond an end is added to
        the outermost section.
    """
    size = bins * cuts
    steps = range(1 - size, size)  # of an edge from the low end of a cell
    scale = cuts * width * sqrt(2)
    below = np.array([_UNITS * (1 + erf((step - cuts / 2) / scale)) / 2 for step in steps])
    edges = np.arange(1, size)[:, None] - cuts * np.arange(bins)
    parts = np.rint(below)[edges + size - 1]
    return np.asarray(np.diff(parts, axis=0, prepend=0, append=_UNITS) / _UNITS)


def spread(kernels: Sequence[Floats], masses: Floats) -> Floats:
    """Apply a kernel along each axis of whole masses with a sum below `_EXACT`, and round."""
    shape = [len(each) for each in kernels]
    for each in kernels:  # each step transforms the first axis and moves it to the end
        masses = np.rint(np.matmul(each, masses.reshape(each.shape[1], -1))).T
    return masses.reshape(shape)


def density(counts: Floats, noise_std: float, kernels: Sequence[Floats], total: float) -> Floats:
    """Return whole masses of the cells' kernels that fit noisy counts; their sum is about `FINE`.

    It is a least-squares fit with masses >= 0 by multiplicative steps. The variance of a count is
    that of its noise plus that of a Poisson number.

    Parameters
    ----------
    counts : ndarray with an axis for each kernel
    noise_std : float
    kernels : sequence of ndarray of shape (n_bins, n_bins)
    total : float
        Number of records.

    References
    ----------
    Lee and Seung, "Algorithms for non-negative matrix factorization", NIPS 2000.
    """
    back = [each.T for each in kernels]
    above, below = np.maximum(counts, 0.0), np.maximum(-counts, 0.0)
    alike = np.full(counts.shape, float(FINE // counts.size))
    if not above.any():
        return alike
    masses = alike.copy()
    for step in range(1, _STEPS + 1):
        expected = spread(kernels, np.rint(masses)) * (total / FINE)
        variance = np.maximum(noise_std**2 + expected, 1e-9)
        wanted, had = above / variance, (expected + below) / variance
        scale = FINE / max(wanted.max(), had.max())
        masses *= spread(back, np.rint(wanted * scale))
        masses /= np.maximum(spread(back, np.rint(had * scale)), 1.0)
        # Multiplicative steps do not preserve the total, which must stay below `_EXACT`.
        if step % 10 == 0 or np.rint(masses).sum() >= _EXACT:
            masses *= FINE / max(fsum(masses.ravel()), 1.0)
    whole = np.rint(masses)
    return whole if whole.any() else alike
