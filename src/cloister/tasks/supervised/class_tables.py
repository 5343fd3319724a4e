"""Tables of classes: contributions of records, and probabilities from noisy tables.

A record contributes integers with public bounds. `labels` are codes of shape (n_samples,), and a
`weight` is the integer that a record counts in its column. Merging of bins and smoothing use noisy
numbers only, so they cost nothing. For these, a `table` has the shape (n_classes, n_cells), in
records, `noise` is the deviation in each cell, and `priors` are the shares of the classes.
"""

from __future__ import annotations

import numpy as np

from cloister.core.arrays import Floats, Integers, Records

_LEVEL_BITS = 16  # of a number before it is squared: the product with a weight then fits 64 bits
_BEYOND_NOISE = 4.0  # chi-squared that one more group of bins must explain: two deviations

# Contributions ------------------------------------------------------------------------------------


def centred_table(counts: Integers, weight: int) -> Integers:
    """Return weighted counts by class and cell, minus the mean over the cells of each class.

    A record adds ``(n_cells - 1) weight`` to its cell and ``-weight`` to the others of its class.
    This vector has the squared norm ``n_cells (n_cells - 1) weight**2`` for every cell.
    """
    n_cells = counts.shape[1]
    return np.asarray(weight * (n_cells * counts - counts.sum(axis=1, keepdims=True)))


def centred_moments(
    labels: Integers, values: Records, n_classes: int, weight: int, frac_bits: int
) -> Integers:
    """Sum ``x`` and ``2 x^2 - 1`` of each class, times `weight`, for x in ``[-1, 1]``.

    Each record's two numbers are cut toward zero to integers in ``[-weight, weight]``. The second
    polynomial ranges over all of ``[-1, 1]``; plain squares would use half of it. The sums have the
    shape (n_classes, 2).
    """
    # Floats hold these sums exactly: weights have at most 21 bits, a chunk fewer than 2**32 records
    sums = [
        np.bincount(labels, weights=part, minlength=n_classes)
        for part in moments_of(values, weight, frac_bits)
    ]
    return np.column_stack(sums).astype(np.int64)


def moments_of(values: Records, weight: int, frac_bits: int) -> tuple[Integers, Integers]:
    """Return each record's contribution to the sums of :func:`centred_moments`."""
    one = 1 << frac_bits
    x = np.clip(values.astype(np.int64), -one, one)
    bits = min(frac_bits, _LEVEL_BITS)
    coarse = np.abs(x) >> (frac_bits - bits)
    square = 2 * coarse**2 - (1 << 2 * bits)
    # Magnitudes are shifted: a shift of negative numbers rounds away from zero.
    first = np.sign(x) * ((np.abs(x) * weight) >> frac_bits)
    second = np.sign(square) * ((np.abs(square) * weight) >> 2 * bits)
    return first, second


def bounded_totals(
    labels: Integers, records: Records, n_classes: int, tops: Integers, weight: int, frac_bits: int
) -> Integers:
    """Sum columns of counts by class; a record with too many counts is scaled down as a whole.

    The top of each column's box counts as `tops`, and its bottom, a count of 0, adds 0. Everything
    is cut toward zero, so that a record's L1 norm is at most `weight` and its squared L2 norm at
    most `weight` times its largest entry. The sums have the shape (n_classes, n_columns).
    """
    parts = bounded_counts(records, tops, weight, frac_bits)
    sums = [np.bincount(labels, weights=part, minlength=n_classes) for part in parts.T]
    return np.column_stack(sums).astype(np.int64)


def bounded_counts(records: Records, tops: Integers, weight: int, frac_bits: int) -> Integers:
    """Return each record's contribution to the sums of :func:`bounded_totals`."""
    one = 1 << frac_bits
    shifted = np.clip(records.astype(np.int64) + one, 0, 2 * one)
    counts = (shifted * tops) >> (frac_bits + 1)
    totals = counts.sum(axis=1)
    # All counts by one factor, so that the proportions of the record are kept.
    long = totals > weight
    counts[long] = counts[long] * weight // totals[long, None]
    return np.asarray(counts)


# Estimates from noisy tables ----------------------------------------------------------------------


def merge_bins(table: Floats, noise: float, priors: Floats) -> Integers:
    """Join neighbouring bins whose mixes of classes do not differ beyond noise and sampling.

    Returns the group of each bin, from 0, ascending. The gain of a group is the chi-squared of its
    mix against `priors`, with the variance of noise and sampling, minus a fee. The groups maximise
    the sum of gains, by dynamic programming in O(n_classes n_bins^2).
    """
    n_classes, n_bins = table.shape
    cumulative = np.concatenate([np.zeros((n_classes, 1)), np.cumsum(table, axis=1)], axis=1)
    width = np.arange(n_bins + 1)[None, :] - np.arange(n_bins + 1)[:, None]
    total = cumulative.sum(axis=0)[None, :] - cumulative.sum(axis=0)[:, None]
    gain = np.zeros((n_bins + 1, n_bins + 1))
    for sums, prior in zip(cumulative, priors, strict=True):
        excess = (sums[None, :] - sums[:, None]) - prior * total
        # The total holds the noise of this class, too, with the weight of its prior.
        noise_variance = noise**2 * ((1 - prior) ** 2 + (n_classes - 1) * prior**2)
        variance = np.maximum(width, 1) * noise_variance + prior * (1 - prior) * np.maximum(
            total, 0
        )
        gain += excess**2 / np.maximum(variance, 1e-9)
    # The excesses of all classes sum to 0, so one of n_classes is not free.
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
    return np.cumsum(starts) - 1


def pseudo_records(noise: float | Floats, priors: Floats) -> Floats:
    """Return the pseudo-counts of each class that smooth each cell.

    All classes together get twice the noise of one cell of two classes, in proportion to their
    size. So a cell that is mostly noise no longer separates the classes, and a cell far above its
    noise hardly changes.
    """
    strength = np.sqrt(2 * len(priors)) * np.atleast_1d(noise)
    return np.asarray(strength[None, :] * priors[:, None])


def fitted_shares(
    table: Floats, groups: Integers, noise: float, priors: Floats, smoothing: float
) -> Floats:
    """Return the probability of each cell in each class, smoothed according to the noise.

    Negative counts are taken as 0, and cells of a group share its probability equally. Laplace
    smoothing adds `smoothing` to each group of each class. Rows sum to 1.
    """
    size = np.bincount(groups)
    joined = np.zeros((len(table), len(size)))
    np.add.at(joined.T, groups, table.T)
    mixed = pseudo_records(noise * np.sqrt(size), priors)
    counts = np.maximum(joined, 0) + smoothing + mixed
    return np.asarray((counts / counts.sum(axis=1, keepdims=True) / size)[:, groups])
