"""Tables of classes: how a record enters them, and how noisy ones become probabilities.

What a record adds is an integer, bounded before any record is seen. All that follows the release
(merging bins, smoothing) looks at noisy numbers only, so it costs nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cloister.task import Floats, Integers, Records

_LEVEL_BITS = 16  # of a number before it is squared: the product with a word then fits 64 bits
_BEYOND_NOISE = 4.0  # chi-squared that one more group of bins must explain: two deviations

# What a record adds -------------------------------------------------------------------------------


def bins_of(values: NDArray[np.int32], bins: int, frac_bits: int) -> Integers:
    """Return the equal-width bin of each grid value; int64 in ``[0, bins - 1]``."""
    shifted = values.astype(np.int64) + (1 << frac_bits)
    found: Integers = np.clip((shifted * bins) >> (frac_bits + 1), 0, bins - 1)
    return found


def centred_table(labels: Integers, cells: Integers, shape: tuple[int, int], word: int) -> Integers:
    """Count records by class and cell, less an equal part of the class in every cell.

    Parameters
    ----------
    labels, cells : ndarray of shape (n_samples,), int64
    shape : (n_classes, n_cells)
    word : int, >= 1

    Returns
    -------
    ndarray of shape (n_classes, n_cells), int64

    Notes
    -----
    A record adds ``(n_cells - 1) word`` to its cell and ``-word`` to the others of its class: a
    vector of squared norm ``n_cells (n_cells - 1) word**2``, whichever cell it is.
    """
    n_classes, n_cells = shape
    counts = np.bincount(labels * n_cells + cells, minlength=n_classes * n_cells).reshape(shape)
    table: Integers = word * (n_cells * counts - counts.sum(axis=1, keepdims=True))
    return table.astype(np.int64)


def centred_moments(
    labels: Integers, values: NDArray[np.int32], n_classes: int, word: int, frac_bits: int
) -> Integers:
    """Sum ``x`` and ``2 x^2 - 1`` of each class, in units of `word`, for x in ``[-1, 1]``.

    Returns
    -------
    ndarray of shape (n_classes, 2), int64

    Notes
    -----
    Each record's two numbers are cut toward zero to integers in ``[-word, word]``. The second
    polynomial ranges over all of ``[-1, 1]``; plain squares would use half of it.
    """
    one = 1 << frac_bits
    x = np.clip(values.astype(np.int64), -one, one)
    bits = min(frac_bits, _LEVEL_BITS)
    coarse = np.abs(x) >> (frac_bits - bits)
    square = 2 * coarse**2 - (1 << 2 * bits)
    first = np.sign(x) * ((np.abs(x) * word) >> frac_bits)
    second = np.sign(square) * ((np.abs(square) * word) >> 2 * bits)
    # floats hold these sums exactly: words have at most 21 bits, a chunk fewer than 2**32 records
    sums = [np.bincount(labels, weights=part, minlength=n_classes) for part in (first, second)]
    return np.column_stack(sums).astype(np.int64)


def bounded_totals(
    labels: Integers, records: Records, n_classes: int, words: Integers, word: int, frac_bits: int
) -> Integers:
    """Sum columns of counts by class; a record with too many is scaled down as a whole.

    Parameters
    ----------
    labels : ndarray of shape (n_samples,), int64
    records : ndarray of shape (n_samples, n_columns), int32, grid steps
    n_classes : int
    words : ndarray of shape (n_columns,), int64
        What the top of each column's box is worth; its bottom, which stands for none, adds 0.
    word : int
        Largest L1 norm of what a record adds.

    Returns
    -------
    ndarray of shape (n_classes, n_columns), int64

    Notes
    -----
    Everything is cut toward zero, so that a record's L1 norm is at most `word` and its squared L2
    norm at most `word` times its largest entry.
    """
    one = 1 << frac_bits
    shifted = np.clip(records.astype(np.int64) + one, 0, 2 * one)
    parts = (shifted * words) >> (frac_bits + 1)
    totals = parts.sum(axis=1)
    long = totals > word
    parts[long] = parts[long] * word // totals[long, None]
    sums = [np.bincount(labels, weights=part, minlength=n_classes) for part in parts.T]
    return np.column_stack(sums).astype(np.int64)


# What is made of noisy tables ---------------------------------------------------------------------


def merge_bins(table: Floats, noise: float, priors: Floats) -> Integers:
    """Join neighbouring bins whose mix of classes noise or chance could have made.

    Parameters
    ----------
    table : ndarray of shape (n_classes, n_bins), records
    noise : float, >= 0
        Standard deviation of the noise in each cell, records.
    priors : ndarray of shape (n_classes,)

    Returns
    -------
    ndarray of shape (n_bins,), int64
        The group of each bin, from 0, ascending.

    Notes
    -----
    Of all ways to cut the row of bins, the one with the largest sum over groups of (chi-squared of
    the group's mix against `priors`, with the variance of noise and of sampling) less a fee for
    each group; found by dynamic programming in O(n_classes n_bins^2).
    """
    n_classes, n_bins = table.shape
    upto = np.concatenate([np.zeros((n_classes, 1)), np.cumsum(table, axis=1)], axis=1)
    width = np.arange(n_bins + 1)[None, :] - np.arange(n_bins + 1)[:, None]
    total = upto.sum(axis=0)[None, :] - upto.sum(axis=0)[:, None]
    gain = np.zeros((n_bins + 1, n_bins + 1))
    for sums, prior in zip(upto, priors, strict=True):
        excess = (sums[None, :] - sums[:, None]) - prior * total
        own_noise = noise**2 * ((1 - prior) ** 2 + (n_classes - 1) * prior**2)
        variance = np.maximum(width, 1) * own_noise + prior * (1 - prior) * np.maximum(total, 0)
        gain += excess**2 / np.maximum(variance, 1e-9)
    gain *= (n_classes - 1) / n_classes
    best, cut = np.zeros(n_bins + 1), np.zeros(n_bins + 1, dtype=np.int64)
    for end in range(1, n_bins + 1):
        values = best[:end] + gain[:end, end] - _BEYOND_NOISE
        cut[end] = values.argmax()
        best[end] = values[cut[end]]
    starts = np.zeros(n_bins, dtype=np.int64)
    end = n_bins
    while end:
        end = int(cut[end])
        starts[end] = 1
    groups: Integers = np.cumsum(starts) - 1
    return groups


def pseudo_records(noise: float | Floats, priors: Floats) -> Floats:
    """Return how many records of the whole population each class is mixed with.

    Parameters
    ----------
    noise : float, or ndarray of shape (n_cells,)
        Standard deviation of the noise in one cell, records.
    priors : ndarray of shape (n_classes,)

    Returns
    -------
    ndarray of shape (n_classes, n_cells), or (n_classes, 1)

    Notes
    -----
    All classes together get twice the noise of one cell of two classes, in proportion to their
    size. So a cell that is mostly noise tells the classes no longer apart, and one far above it is
    left as it is.
    """
    strength = np.sqrt(2 * len(priors)) * np.atleast_1d(noise)
    mixed: Floats = strength[None, :] * priors[:, None]
    return mixed


def fitted_shares(
    table: Floats, groups: Integers, noise: float, priors: Floats, smoothing: float
) -> Floats:
    """Return the probability of each cell in each class, smoothed as much as the noise asks.

    Parameters
    ----------
    table : ndarray of shape (n_classes, n_cells), records
        Noisy counts; negative ones count as 0.
    groups : ndarray of shape (n_cells,), int64
        Cells of one group share its probability equally.
    noise : float, >= 0
        Standard deviation in each cell, records.
    priors : ndarray of shape (n_classes,)
    smoothing : float, > 0
        Records added to each group of each class, as Laplace did.

    Returns
    -------
    ndarray of shape (n_classes, n_cells), rows sum to 1
    """
    size = np.bincount(groups)
    joined = np.zeros((len(table), len(size)))
    np.add.at(joined.T, groups, table.T)
    mixed = pseudo_records(noise * np.sqrt(size), priors)
    counts = np.maximum(joined, 0) + smoothing + mixed
    shares: Floats = (counts / counts.sum(axis=1, keepdims=True) / size)[:, groups]
    return shares
