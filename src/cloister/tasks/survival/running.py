"""Noisy counts of many ordered cells, such that the count of any run of cells has little noise.

Counts x in cells are released as R x with noise. R is the lower-triangular Toeplitz matrix of the
series ``(1 - z)**-1/2``, and its square is the matrix of running sums [FHU23]_. The cells are in
reversed order, so that a sum over the latest cells is a running sum: the number at risk. A record
is in one cell, so it adds one column of R, whose squared length grows with the logarithm of the
number of cells. The inverse is exact for the released integers, so counts are unbiased.

References
----------
.. [FHU23] Fichtenberger, Henzinger and Upadhyay, "Constant matters: fine-grained error bound on
   differentially private continual observation", ICML 2023.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from cloister.core.arrays import Floats, Integers
from cloister.protocol.task import COUNT_BITS, Block

_ONE = 1 << COUNT_BITS


@cache
def column(cells: int) -> Integers:
    """Return the first column of R in integers, truncated toward zero."""
    # Element by element in double precision, so that all machines have the same integers.
    entries = [1.0]
    for k in range(1, cells):
        entries.append(entries[-1] * (1 - 1 / (2 * k)))
    words = np.array([int(entry * _ONE) for entry in entries], dtype=np.int64)
    words.flags.writeable = False
    return words


def block_of(name: str, tables: int, cells: int, weight: float) -> Block:
    """Return the block of `tables` sequences of cells, to which a record adds one column of R."""
    words = column(cells)
    return Block(name, (tables * cells,), int(words.sum()), int(words @ words), weight)


def encoded(counts: Integers) -> Integers:
    """Return R applied to counts; shape (..., cells), cells in their order."""
    cells = counts.shape[-1]
    rows = counts.reshape(-1, cells)[:, ::-1]
    sums = np.zeros(rows.shape, dtype=np.int64)
    for i in np.flatnonzero(rows.any(axis=1)):
        sums[i] = np.convolve(column(cells), rows[i])[:cells]  # exact for integers of NumPy
    return sums.reshape(counts.shape)


def decoded(released: Floats) -> Floats:
    """Return unbiased counts from released sums, in records; the inverse of :func:`encoded`."""
    return _applied(released)[..., ::-1]


def weights_of(gradients: Floats) -> Floats:
    """Return the derivatives of statistics by the independent noises of the released sums.

    Parameters
    ----------
    gradients : ndarray of shape (..., cells)
        Derivatives of the statistics by the counts of :func:`decoded`.

    Returns
    -------
    ndarray of the same shape
        Covariances of statistics are dot products of these rows times the variance of the noise.
    """
    return _applied(gradients)


def tail_deviations(cells: int) -> Floats:
    """Return the noise in each sum over a cell and all later ones, for a noise of 1; (cells,)."""
    return np.asarray(np.sqrt(np.cumsum((column(cells) / _ONE) ** 2))[::-1])


def cuts_of(events: Floats, least: float) -> Integers:
    """Return the first cell of each block with enough events, and the end of the last block.

    Parameters
    ----------
    events : ndarray of shape (cells + 1,)
        Monotone regression of the events before each cell.
    least : float
        Least number of events of a block, above 0; the last block may have fewer.
    """
    last = len(events) - 1
    cuts = [0]
    while cuts[-1] < last - 1:
        level = np.searchsorted(events, events[cuts[-1]] + least)
        if level >= last:
            break
        # The middle of a level of the regression: where a level begins, the noise is high.
        end = np.searchsorted(events, events[level], side="right")
        cuts.append(int(min(max((level + end) // 2, cuts[-1] + 1), last - 1)))
    return np.unique([*cuts, last])


def _applied(rows: Floats) -> Floats:
    """Return the product of rows with the inverse series, along the last axis."""
    from scipy.fft import irfft, next_fast_len, rfft

    cells = rows.shape[-1]
    size = next_fast_len(2 * cells, real=True)
    product = irfft(rfft(_inverse(cells), size) * rfft(rows, size), size)
    return np.asarray(product[..., :cells])


@cache
def _inverse(cells: int) -> Floats:
    """Return the first column of the inverse of the truncated R."""
    from scipy.signal import lfilter

    impulse = np.zeros(cells)
    impulse[0] = 1.0
    return np.asarray(lfilter([1.0], column(cells) / _ONE, impulse))
