"""What noisy supports of itemsets say: a law of basket sizes, and estimates that know the noise.

All of it is post-processing of released counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cloister.core.arrays import Floats, Integers

# A bin counts as it is from so many deviations of its noise above zero. With 3, one of the twenty
# bins did so by chance in one run of forty, and baskets that nobody has weighed more than all.
_STANDS_OUT = 5.0
_MISFIT = 0.1  # part of a bin by which the law of the tail may be wrong
_STEEPEST = 3.0  # rise of a logarithm within a bin
_POWERS = np.linspace(-2.0, 4.0, 25)
_N_SCALES = 30
_PRIOR = (1.0, 0.3, 0.2)  # deviations of the level, of the slope, of each item; in log support
_STEPS, _LONGEST_STEP = 8, 0.5
_LEAST_SPREAD = 0.1
_FIRST_SPREAD = 0.25


def load_edges(most: int) -> tuple[int, ...]:
    """Return the first load of each bin, from 0 to beyond `most`, each about sqrt(2) apart."""
    edges = [0, 1]
    while edges[-1] <= most:
        edges.append(min(max(edges[-1] + 1, round(edges[-1] * 2**0.5)), most + 1))
    return tuple(edges)


def load_law(histogram: Floats, edges: tuple[int, ...], noise_std: float) -> Floats:
    """Return how many baskets have each load, from a noisy histogram of loads.

    The bins are between the `edges` of :func:`load_edges`; each has noise of `noise_std` baskets.
    A bin that stands out of its noise counts as it is; within it, numbers rise or fall as its
    neighbours say. The others follow the law of the best fit whose numbers fall off as
    ``load**a * exp(-load / b)``: the few baskets of many items, which weigh most, are lost in noise
    bin by bin.
    """
    loads = np.arange(1, edges[-1])
    bins = np.searchsorted(edges, loads, side="right") - 2
    counts = histogram[1:]
    width = np.diff(edges)[1:]
    shape = _best_shape(counts, loads, bins, noise_std)
    fitted = np.bincount(bins, shape, len(counts))
    inside = np.where(fitted[bins] > 0, shape / np.where(fitted > 0, fitted, 1)[bins], 0.0)
    inside = np.where(fitted[bins] > 0, inside, 1 / width[bins])
    clear = counts >= _STANDS_OUT * noise_std
    found = np.where(clear, counts, fitted)
    tilted = np.exp(_slopes(found, width, max(noise_std, 1.0))[bins] * loads)
    tilted /= np.bincount(bins, tilted, len(counts))[bins]
    return np.concatenate(
        [np.maximum(histogram[:1], 0.0), found[bins] * np.where(clear[bins], tilted, inside)]
    )


def _slopes(found: Floats, width: Integers, least: float) -> Floats:
    """Return how the logarithm of the number at a load rises within each bin, by its neighbours."""
    logs = np.log(np.maximum(found, least) / width)
    middles = np.cumsum(width) - width / 2
    rise = np.zeros(len(found))
    if len(found) > 1:
        rise = np.gradient(logs, middles)
    return np.clip(rise, -_STEEPEST / width, _STEEPEST / width)


def _best_shape(counts: Floats, loads: Integers, bins: Integers, noise_std: float) -> Floats:
    """Return the number of baskets of each load under the best law of the family."""
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
    """Baskets that do not count in full, as a law of loads has them.

    Parameters
    ----------
    factor, spread : float
        What makes up for their weights, on average over all that they hold, and its deviation.
    share : float in [0, 1]
        Their part in the sum of all weighted supports.
    baskets : float, >= 0
        How many there are.
    """

    factor: float
    spread: float
    share: float
    baskets: float


def mended(
    weighed: tuple[Floats, Floats], in_heavy: tuple[Floats, Floats], heavy: Heavy
) -> dict[str, Floats]:
    """Make up for the weights of heavy baskets, set by set.

    Parameters
    ----------
    weighed, in_heavy : (ndarray, ndarray), each of shape (n_sets,)
        Noisy weighted supports, and the deviation of their noise: in all baskets, and in heavy ones
        alone.

    Returns
    -------
    dict
        ``counted``, what all baskets hold, ``error``, its deviation: noise, and that a set may be
        in heavier or lighter ones of the heavy baskets than others. ``count`` and ``std``: an
        estimate of smaller error, which takes the part of a set in heavy baskets to be as large as
        others' as far as the noise makes it so.
    """
    (sums, std), (own, own_std) = weighed, in_heavy
    more = heavy.factor - 1
    counted = sums + more * own
    # the mean over a part p of them is within sqrt((1 - p) / p) deviations of that over all
    # (Cauchy-Schwarz); of a small part one deviation is taken, of a large one a half
    part = np.clip(heavy.factor * own / max(heavy.baskets, 1.0), 0.5, 0.8)
    away = heavy.spread * np.sqrt((1 - part) / part)
    uneven = away * np.maximum(own + own_std, 0.0)
    # by moments over all sets: how far the part in heavy baskets is from the usual one
    noise = own_std**2 + (heavy.share * std) ** 2
    apart = float(((own - heavy.share * sums) ** 2 - noise).sum())
    trust = apart / (apart + float(noise.sum())) if apart > 0 else 0.0
    usual = 1 + more * (1 - trust) * heavy.share
    return {
        "counted": counted,
        "error": np.sqrt(std**2 + (more * own_std) ** 2 + uneven**2),
        "count": usual * sums + more * trust * own,
        "std": np.hypot(usual * std, more * trust * own_std),
    }


def shrink(counts: Floats, stds: Floats, expected: Floats, members: Integers) -> Floats:
    """Return the expected supports of itemsets, given their noisy ones and those of their parts.

    Parameters
    ----------
    counts, stds : ndarray of shape (n_sets,)
        Noisy supports in baskets, and the deviation of the noise of each; 0 for none.
    expected : ndarray of shape (n_sets,), > 0
        Supports if items went together by chance.
    members : ndarray of shape (n_sets, size), int64
        The items of each set.

    Returns
    -------
    ndarray of shape (n_sets,)

    Notes
    -----
    Empirical Bayes: true supports lie around ``expected**b * exp(a + g_i + g_j + ...)``, where
    item i is met in company more or less often than others, with a spread that is a part of their
    mean. The means are fitted by Gauss-Newton with normal priors, the spread by moments.
    """
    if not len(counts):
        return counts
    names, place = np.unique(members, return_inverse=True)
    logs = np.log(expected)
    design = np.zeros((len(counts), 2 + len(names)))
    design[:, 0], design[:, 1] = 1.0, logs - logs.mean()
    np.add.at(design, (np.arange(len(counts))[:, None], 2 + place.reshape(members.shape)), 1.0)
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
        mean = expected * np.exp(np.clip(design @ theta, -3, 3))
        spread = _spread(counts, stds, mean)
    signal = (spread * mean) ** 2
    return mean + (counts - mean) * signal / (signal + stds**2)


def _spread(counts: Floats, stds: Floats, mean: Floats) -> float:
    """Return how far true supports lie from their mean, as a part of it, by moments."""
    weights = 1 / (stds**2 + (_FIRST_SPREAD * mean) ** 2)
    squared = float(weights @ ((counts - mean) ** 2 - stds**2)) / float(weights @ mean**2)
    return float(max(squared, _LEAST_SPREAD**2) ** 0.5)
