"""Bounds of the tail of gradient sizes, from noisy counts of them.

Few records are in a tail, and noise hides them. The tail is modelled by generalised Pareto
distributions from the last size that many records exceed. Each distribution has the weight of its
likelihood given the noisy counts.

References
----------
.. [P75] Pickands, "Statistical inference using extreme order statistics", Annals of Statistics
   3(1), 1975: the excess over a high threshold has a generalised Pareto distribution.
.. [A21] Andrew, Thakkar, McMahan, Ramaswamy, "Differentially Private Learning with Adaptive
   Clipping", NeurIPS 2021: the clipping norm of gradients follows from noisy counts.
"""

from __future__ import annotations

import numpy as np

from cloister.core.arrays import Floats
from cloister.tasks.supervised.least_squares import EDGES

_MANY = 5.0  # deviations of the noise
_FEWEST = 20.0  # least number of records to model a tail
_SHAPES = np.linspace(-0.25, 0.6, 11) + 1e-3  # powers 1 / 0.75 and above, and tails that end
_SCALES = 2.0 ** np.linspace(-5, 1, 19)  # relative to the threshold
_HIDDEN_ROWS, _HIDDEN_OCTAVES = 0.5, 3  # deviations of the noise, above the threshold


def cut_of_sizes(
    counts: Floats, noise_std: float, price: float, least: int, end: int
) -> tuple[int, float]:
    """Choose the size at which gradients are clipped, from counts of their sizes.

    Parameters
    ----------
    counts, noise_std, price
        As for :func:`~cloister.tasks.supervised.least_squares.cut_of`.
    least, end : int
        Classes of the smallest cut, and of the largest possible size.

    Returns
    -------
    cut : int
        Index of the edge with the least sum of noise and influence of the records beyond.
    influence : float
        Length of the sum of all clipped parts, in units of the cut: the root of its mean square
        over the distributions.
    """
    beyond = np.cumsum(counts[end:0:-1])[::-1]  # of the lower edge of classes 1 to `end`
    error = noise_std * np.sqrt(np.arange(end, 0, -1))
    least = min(least, end - 1)
    seen = np.flatnonzero(beyond > np.maximum(_MANY * error, _FEWEST))
    first = int(seen[-1]) if seen.size else least
    low, edges = EDGES[first], EDGES[first : end + 1]
    shape, scale = (v.reshape(-1, 1) for v in np.meshgrid(_SHAPES, _SCALES * low))
    left = np.maximum(1 + shape * (edges - low) / scale, 0.0)
    with np.errstate(divide="ignore"):
        reached = left ** (-1 / shape) * (left > 0)
    parts = reached[:, :-1] - reached[:, 1:]
    parts[:, -1] += reached[:, -1]
    most = max(float(beyond[first]), 1.0)
    # Of a noisy count: the privacy noise, and the chance that brought its records there.
    variance = noise_std**2 + most * parts + 1e-9
    tail = counts[first + 1 : end + 1]
    exceed = (parts * tail / variance).sum(axis=1) / (parts**2 / variance).sum(axis=1)
    exceed = np.clip(exceed, 0.1 * most, 10 * most)
    misses = ((tail - exceed[:, None] * parts) ** 2 / variance + np.log(variance)).sum(axis=1)
    likely = np.exp((misses.min() - misses) / 2)
    likely /= likely.sum()
    # The sum of the excess over each edge.
    excess = exceed[:, None] * reached * left * scale / (1 - shape)
    influence = np.sqrt(likely @ excess**2 + _hidden(edges, noise_std) ** 2) / edges
    # No size is above the last edge: a cut there loses nothing.
    influence[-1] = 0.0
    total = edges * np.hypot(price, 1.5 * influence)
    total[: max(least - first, 0)] = np.inf
    best = int(total.argmin())
    return first + best, float(influence[best])


def _hidden(edges: Floats, noise_std: float) -> Floats:
    """Return the contribution of a few outliers to the sum above each edge.

    They are fewer than the noise of a count, and spread evenly over the octaves above the first
    edge. Outliers of one column among many are an example.
    """
    sizes = edges[: max(min(4 * _HIDDEN_OCTAVES, len(edges) - 1), 1)]
    rows = _HIDDEN_ROWS * noise_std * np.sqrt(len(sizes))
    return np.asarray(rows * np.maximum(sizes - edges[:, None], 0.0).mean(axis=1))
