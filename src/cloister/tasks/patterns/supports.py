"""Estimates from noisy supports of itemsets: a distribution of basket sizes, and shrinkage.

All of it is post-processing of released counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cloister.core.arrays import Floats, Integers

# A bin's count is used directly if it exceeds so many deviations of its noise. With 3, one of the
# twenty bins did so by chance in one run of forty, and nonexistent baskets outweighed all others.
_STANDS_OUT = 5.0
_MISFIT = 0.1  # relative error of a bin by the distribution of the tail
_STEEPEST = 3.0  # largest change of a logarithm within a bin
_UNEVEN = 0.5  # measured: frequent sets are within 1.3 deviations, nine of ten within a half
_POWERS = np.linspace(-2.0, 4.0, 25)
_N_SCALES = 30
_PRIOR = (1.0, 0.3, 0.2)  # deviations of the level, of the slope, of each item; in log support
_STEPS, _LONGEST_STEP = 8, 0.5  # damped, because the model is exponential in its parameters
_LEAST_SPREAD = 0.1
_FIRST_SPREAD = 0.25  # before the first estimate of the spread


def load_edges(most: int) -> tuple[int, ...]:
    """Return the first load of each bin, from 0 to beyond `most`, each about sqrt(2) apart."""
    edges = [0, 1]
    while edges[-1] <= most:
        edges.append(min(max(edges[-1] + 1, round(edges[-1] * 2**0.5)), most + 1))
    return tuple(edges)


def load_law(histogram: Floats, edges: tuple[int, ...], noise_std: float) -> Floats:
    """Return the number of baskets with each load, from a noisy histogram of loads.

    The bins are between the `edges` of :func:`load_edges`; each has noise of `noise_std` baskets.
    The count of a bin well above its noise is used directly; the slope within the bin follows its
    neighbours. The other bins follow the best fit of a distribution ``load**a * exp(-load / b)``.
    """
    # The few baskets with many items weigh most, but bin by bin the noise hides them.
    loads = np.arange(1, edges[-1])
    bins = np.searchsorted(edges, loads, side="right") - 2
    counts = histogram[1:]
    width = np.diff(edges)[1:]
    shape = _best_shape(counts, loads, bins, noise_std)
    fitted = np.bincount(bins, shape, len(counts))
    inside = np.where(fitted[bins] > 0, shape / np.where(fitted > 0, fitted, 1)[bins], 0.0)
    inside = np.where(fitted[bins] > 0, inside, 1 / width[bins])
    clear = counts >= _STANDS_OUT * noise_std
    numbers = np.where(clear, counts, fitted)
    tilted = np.exp(_slopes(numbers, width, max(noise_std, 1.0))[bins] * loads)
    tilted /= np.bincount(bins, tilted, len(counts))[bins]
    return np.concatenate(
        [np.maximum(histogram[:1], 0.0), numbers[bins] * np.where(clear[bins], tilted, inside)]
    )


def _slopes(numbers: Floats, width: Integers, least: float) -> Floats:
    """Return the slope of the logarithm of the counts within each bin, from its neighbours."""
    logs = np.log(np.maximum(numbers, least) / width)
    middles = np.cumsum(width) - width / 2
    rise = np.zeros(len(numbers))
    if len(numbers) > 1:
        rise = np.gradient(logs, middles)
    return np.clip(rise, -_STEEPEST / width, _STEEPEST / width)


def _best_shape(counts: Floats, loads: Integers, bins: Integers, noise_std: float) -> Floats:
    """Return the number of baskets with each load under the best distribution of the family."""
    weights = 1 / (noise_std**2 + (_MISFIT * counts) ** 2 + 1.0)
    scales = np.geomspace(0.5, loads[-1] + 1.0, _N_SCALES)
    best, least = np.zeros(len(loads)), np.inf
    starts = np.flatnonzero(np.diff(bins, prepend=-1))
    for power in _POWERS:
        logs = power * np.log(loads) - loads / scales[:, None]
        laws = np.exp(logs - logs.max(axis=1, keepdims=True))
        sums = np.add.reduceat(laws, starts, axis=1)
        heights = np.maximum((weights * sums) @ counts / ((weights * sums) * sums).sum(axis=1), 0.0)
        losses = (weights * (counts - heights[:, None] * sums) ** 2).sum(axis=1)
        at = int(losses.argmin())
        if losses[at] < least:
            least, best = float(losses[at]), heights[at] * laws[at]
    return best


@dataclass(frozen=True)
class Heavy:
    """Statistics of baskets that do not count in full, from a distribution of loads.

    Parameters
    ----------
    factor, spread : float
        Mean shortfall of a candidate of theirs over the part in the second sum, and its deviation.
        The factor is at least 1, and 1 if that sum has all of it.
    error : float
        Deviation of the factor, by the noise of the histogram.
    scatter : float
        Variance by the choice of the counted candidates, over the second sum.
    share : float in [0, 1]
        The second sum as a share of the sum of all weighted supports.
    most : float, >= 0
        The second sum of a set that all of them hold.
    """

    factor: float = 1.0
    spread: float = 0.0
    error: float = 0.0
    scatter: float = 0.0
    share: float = 0.0
    most: float = 0.0


def heavy_of(
    law: Floats,
    edges: tuple[int, ...],
    noise_std: float,
    kept: Floats,
    lacks: Floats,
    gain: int,
    cut: bool,
) -> Heavy:
    """Return the statistics of heavy baskets, weighted by candidates.

    Parameters
    ----------
    law : ndarray of shape (n_loads,)
        Number of baskets with each load, from :func:`load_law`.
    kept, lacks : ndarray of shape (n_loads,)
        The weight of a basket's candidates together, and what they lack.
    gain : int, >= 1
        The second sum has ``min(lacks, kept / gain)``.
    cut : bool
        Whether some candidates of a basket count in full and the others not at all.
    """
    measured = np.minimum(lacks, kept / gain)
    number = float(law @ measured)
    if number <= 0:
        return Heavy()
    factor = float(law @ lacks) / number
    ratios = lacks / np.where(measured > 0, measured, 1.0)
    variance = float(law @ (measured * (ratios - factor) ** 2)) / number
    # A bin's error is its noise, or all of what the tail has there.
    starts = edges[:-1]
    baskets = np.add.reduceat(law, starts)
    pull = np.add.reduceat(law * (lacks - factor * measured), starts)
    errors = pull * np.minimum(noise_std / np.maximum(baskets, 1e-12), 1.0)
    loads = np.maximum(np.arange(len(law)), 1)
    return Heavy(
        factor,
        variance**0.5,
        float(np.sqrt((errors**2).sum())) / number,
        # Of a part p = kept / (kept + lacks), each counted one stands for 1 / p: its variance.
        float(law @ (lacks * (kept + lacks) / np.maximum(kept, 1e-12))) / number * cut,
        number / float(law @ kept),
        float(law @ (measured / loads)),
    )


def mended(
    weighed: tuple[Floats, Floats], missing: tuple[Floats, Floats], heavy: Heavy
) -> dict[str, Floats]:
    """Add what the weights of heavy baskets lack, set by set.

    Parameters
    ----------
    weighed, missing : (ndarray, ndarray), each of shape (n_sets,)
        Noisy weighted supports and the deviation of their noise, and the same of the second sum.

    Returns
    -------
    dict
        ``counted``, the support in all baskets, and ``error``, its deviation, by noise and by the
        unknown loads of the largest baskets with a set. ``count`` and ``std``, an estimate with a
        smaller error. It shrinks the second sum of a set toward the usual share.
    """
    (sums, std), (own, own_std) = weighed, missing
    counted = sums + heavy.factor * own
    held = np.maximum(own, 0.0)
    # The mean over a share p of them is within sqrt((1 - p) / p) deviations of the mean over all
    # (Cauchy-Schwarz). Half of that is used, and of a share below a half, half a deviation.
    shares = np.clip(held / max(heavy.most, 1e-12), 0.5, 0.8)
    uneven = _UNEVEN * heavy.spread * np.sqrt((1 - shares) / shares) * held
    # By moments over all sets: the distance of the share that is missing to its mean.
    noise = own_std**2 + (heavy.share * std) ** 2
    apart = float(((own - heavy.share * sums) ** 2 - noise).sum())
    trust = apart / (apart + float(noise.sum())) if apart > 0 else 0.0
    usual = 1 + heavy.factor * (1 - trust) * heavy.share
    return {
        "counted": counted,
        "error": np.sqrt(
            std**2
            + (heavy.factor * own_std) ** 2
            + uneven**2
            + (heavy.error * held) ** 2
            + heavy.scatter * held
        ),
        "count": usual * sums + heavy.factor * trust * own,
        "std": np.hypot(usual * std, heavy.factor * trust * own_std),
    }


def shrink(counts: Floats, stds: Floats, expected: Floats, members: Integers) -> Floats:
    """Return the expected supports of itemsets, given noisy supports and those of subsets.

    Parameters
    ----------
    counts, stds : ndarray of shape (n_sets,)
        Noisy supports in baskets, and the deviation of the noise of each; 0 without noise.
    expected : ndarray of shape (n_sets,), > 0
        Supports if items were independent.
    members : ndarray of shape (n_sets, size), int64
        The items of each set.

    Returns
    -------
    ndarray of shape (n_sets,)

    Notes
    -----
    Empirical Bayes: true supports have the mean ``expected**b * exp(a + g_i + g_j + ...)``, where
    g_i is the tendency of item i to occur with others. Their spread is proportional to the mean.
    The means are fitted by Gauss-Newton with normal priors, the spread by moments.
    """
    if not len(counts):
        return counts
    names, indices = np.unique(members, return_inverse=True)
    logs = np.log(expected)
    design = np.zeros((len(counts), 2 + len(names)))
    design[:, 0], design[:, 1] = 1.0, logs - logs.mean()
    np.add.at(design, (np.arange(len(counts))[:, None], 2 + indices.reshape(members.shape)), 1.0)
    level, slope, item = _PRIOR
    precision = 1 / np.array([level, slope, *[item] * len(names)]) ** 2
    theta = np.zeros(design.shape[1])
    mean, spread = expected, _FIRST_SPREAD
    for _ in range(_STEPS):
        variance = stds**2 + (spread * mean) ** 2
        slopes = (design * (mean / variance)[:, None]).T
        curvature = (slopes * mean) @ design + np.diag(precision)
        step = np.linalg.solve(curvature, slopes @ (counts - mean) - precision * theta)
        theta += step * min(1.0, _LONGEST_STEP / max(float(np.abs(step).max()), 1e-12))
        mean = expected * np.exp(np.clip(design @ theta, -3, 3))  # a wrong step must not overflow
        spread = _spread(counts, stds, mean)
    signal = (spread * mean) ** 2
    return mean + (counts - mean) * signal / (signal + stds**2)


def _spread(counts: Floats, stds: Floats, mean: Floats) -> float:
    """Return the relative deviation of true supports from their mean, by moments."""
    # The noise is subtracted, so the difference may be negative.
    weights = 1 / (stds**2 + (_FIRST_SPREAD * mean) ** 2)
    squared = float(weights @ ((counts - mean) ** 2 - stds**2)) / float(weights @ mean**2)
    return float(max(squared, _LEAST_SPREAD**2) ** 0.5)
